"""What a run has to show: rows of numbers, and drawings as data. Draws nothing."""

from dataclasses import dataclass, field

from bench.simulator.recorder import GapsAt, Recorder
from bench.simulator.table import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class GapsDrawing:
    """The longest gap between tokens at each moment, a line for each run."""

    name: str
    runs: dict[str, list[GapsAt]]
    from_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyDrawing:
    """What share of first tokens, and of gaps between tokens, came within each time."""

    name: str
    runs: dict[str, Recorder]


@dataclass(frozen=True, slots=True, kw_only=True)
class BarsDrawing:
    """One bar for each run."""

    name: str
    label: str
    values: dict[str, float]


Drawing = GapsDrawing | LatencyDrawing | BarsDrawing


@dataclass(slots=True)
class Shown:
    """Everything a run has to show."""

    rows: list[Row] = field(default_factory=list)
    drawings: list[Drawing] = field(default_factory=list)

    def add(self, name: str, numbers: Row) -> None:
        """A row of the table."""
        self.rows.append({"run": name, **numbers})
