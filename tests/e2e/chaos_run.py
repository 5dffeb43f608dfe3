"""Rounds of one blow each against two living replicas under a crowd, and what came of them."""

import asyncio
import json
import logging
import math
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.e2e.blows import Blow, blow_of_round, strike
from tests.e2e.crowd import Crowd
from tests.e2e.replica import Replica, wait_until

_LOG = logging.getLogger(__name__)
_READY_LIMIT_S = 60.0


@dataclass
class Progress:
    """What rounds with one seed have shown so far, kept in a file between runs."""

    seed: int
    num_rounds: int = 0
    num_streams: int = 0
    num_cancelled: int = 0
    num_tokens: int = 0
    num_reconnects: int = 0
    num_blows: dict[str, int] = field(default_factory=dict)
    silences_s: dict[str, list[float]] = field(default_factory=dict)
    """By blow: the longest silence that each steady client of each round saw."""
    recoveries_s: dict[str, list[float]] = field(default_factory=dict)
    """By part, as the service logs it."""

    @classmethod
    def read(cls, path: Path, *, seed: int) -> "Progress":
        """What the file holds, or nothing when it is of another seed."""
        if path.is_file():
            known = cls(**json.loads(path.read_text(encoding="utf-8")))
            if known.seed == seed:
                return known
        return cls(seed=seed)

    def write(self, path: Path) -> None:
        """Keeps it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    def note_round(self, blow: Blow, silences_s: Sequence[float]) -> None:
        """One more round is over."""
        self.num_rounds += 1
        name = f"{blow.deed} {blow.victim}".replace("-0", "").replace("-1", "")
        self.num_blows[name] = self.num_blows.get(name, 0) + 1
        self.silences_s.setdefault(name, []).extend(round(each, 2) for each in silences_s)

    def note_crowd(self, crowd: Crowd) -> None:
        """The crowd has gone home."""
        self.num_streams += crowd.tally.num_streams
        self.num_cancelled += crowd.tally.num_cancelled
        self.num_tokens += crowd.tally.num_tokens
        self.num_reconnects += crowd.tally.num_reconnects

    def note_log(self, log: str) -> None:
        """A replica has ended; what it wrote of its recoveries."""
        for line in log.splitlines():
            _, found, parts = line.partition("streams go on: ")
            for part in parts.split(", ") if found else ():
                name, seconds, _ = part.split()
                self.recoveries_s.setdefault(name, []).append(float(seconds))

    def summary(self) -> str:
        """For people."""
        lines = [
            (
                f"{self.num_rounds} blows, {self.num_streams} whole streams, {self.num_cancelled} "
                f"cancelled, {self.num_tokens} tokens compared, {self.num_reconnects} reconnects;"
                " seconds without a token, by blow: median, 95 of 100, most"
            )
        ]
        for name, silences in sorted(self.silences_s.items()):
            lines.append(f"  {name:20} {self.num_blows[name]:4} times {_columns(silences)}")
        lines.append("recoveries as the service measures them, the same figures:")
        for name, seconds in sorted(self.recoveries_s.items()):
            lines.append(f"  {name:20} {len(seconds):4} times {_columns(seconds)}")
        return "\n".join(lines)


def _columns(values: Sequence[float]) -> str:
    return "".join(f"{quantile(values, share):8.3f}" for share in (0.5, 0.95, 1.0))


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that this share of them does not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


async def run_rounds(
    replicas: Sequence[Replica],
    crowd: Crowd,
    progress: Progress,
    *,
    num_rounds: int,
    limit_s: float,
) -> None:
    """Goes on from `progress` up to `num_rounds`, or until the time is up."""
    ends_at = time.monotonic() + limit_s
    await crowd.moved()
    while progress.num_rounds < num_rounds and time.monotonic() < ends_at:
        draw = random.Random(f"{progress.seed} {progress.num_rounds}")
        replica, blow = draw.choice(replicas), blow_of_round(progress.seed, progress.num_rounds)
        await asyncio.sleep(draw.uniform(0.0, 0.6))
        _LOG.info("round %d: %s at %s", progress.num_rounds, blow, replica.target)
        striking = asyncio.create_task(strike(replica, blow))
        silences_s = await crowd.moved()
        await striking
        for one in replicas:
            await asyncio.to_thread(one.wait_ready, limit_s=_READY_LIMIT_S)
        if crowd.tally.problems:
            return
        progress.note_round(blow, silences_s)


def tracebacks(log: str) -> list[str]:
    """What a log holds of errors that nobody expected, a few lines of each."""
    lines = log.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback")]
    return ["\n".join(lines[start - 1 : start + 30]) for start in starts]


def check_nothing_is_left(replica: Replica, *, limit_s: float) -> None:
    """Once nobody asks any more, no request lives and no block is held."""

    def values() -> list[float]:
        lines = replica.get("/metrics")[1].splitlines()
        return [
            float(line.split()[-1])
            for line in lines
            if line.startswith(("octavo_num_requests_live", "octavo_kv_blocks_in_use"))
        ]

    wait_until(
        lambda: values() == [0.0, 0.0],
        limit_s=limit_s,
        otherwise=lambda: f"{values()}\n{replica.log()}",
    )
