"""What a frontend asks of whoever traces its calls. Makes no span itself and imports no tracing.

Times are seconds on the frontend's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Attributes = Mapping[str, str | int | float | Sequence[str]]


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of a call that is over."""

    name: str
    begins_at: float
    ends_at: float
    attributes: Attributes = field(default_factory=dict)


class CallSpan(Protocol):
    """One sampled call in progress."""

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        ...

    def end(
        self,
        *,
        code: str,
        code_number: int,
        reason: str,
        attributes: Attributes,
        phases: Sequence[Phase],
        now: float,
    ) -> None:
        """The call ended now."""


class CallTracer(Protocol):
    """Decides which calls are traced."""

    def begin(
        self, *, method: str, metadata: Mapping[str, str | bytes], now: float
    ) -> CallSpan | None:
        """The span of a call that arrived now; None when it is not sampled."""
        ...
