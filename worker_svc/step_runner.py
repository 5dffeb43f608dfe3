"""Where a rank's steps are computed, as its loop sees it. Knows no message and no tensor.

A device launches a step and has its result later; a loop that asks `is_done` before it collects
keeps two steps in flight there, and none on a processor that computes while launching.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from worker_svc.batch_step import BatchStep, SampledRows


@dataclass(frozen=True, slots=True)
class StepTiming:
    """How long one step took, in microseconds."""

    forward_us: int
    """The device computed."""
    stall_us: int
    """The device was idle before, although the plan was there."""
    queued_us: int
    """The plan waited in this process before the device took it."""


@dataclass(frozen=True, slots=True, eq=False)
class StepOutcome:
    """What a step did."""

    rows: SampledRows
    timing: StepTiming


class StepRunner(Protocol):
    """Runs steps in the order of their launch, at most two in flight."""

    def begin_epoch(self) -> None:
        """Forget everything about slots and contents of the cache; nothing is in flight."""
        ...

    def time_limit_ms(self, step: BatchStep) -> int:
        """Longest time that computing this step could honestly take."""
        ...

    def launch(self, step: BatchStep, *, received_ns: int) -> None:
        """Begin a step whose plan came at `received_ns` of `time.monotonic_ns`."""
        ...

    def is_done(self) -> bool:
        """Whether the oldest step in flight has its result. Never blocks."""
        ...

    def collect(self) -> StepOutcome:
        """Take the result of the oldest step in flight; wait for it if need be."""
        ...


class SynchronousRunner:
    """A `StepRunner` over a function that computes a step and returns."""

    def __init__(
        self,
        execute: Callable[[BatchStep], SampledRows],
        *,
        limit_ms_per_token: float = 0.0,
        on_epoch: Callable[[], None] | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._execute = execute
        self._limit_ms_per_token = limit_ms_per_token
        self._on_epoch = on_epoch
        self._clock_ns = clock_ns
        self._done: deque[StepOutcome] = deque()
        self._idle_since_ns = 0

    def begin_epoch(self) -> None:
        """Tells whoever computes."""
        self._done.clear()
        if self._on_epoch is not None:
            self._on_epoch()

    def time_limit_ms(self, step: BatchStep) -> int:
        """In proportion to the step's tokens."""
        return round(self._limit_ms_per_token * step.token_ids.size)

    def launch(self, step: BatchStep, *, received_ns: int) -> None:
        """Computes the step."""
        began_ns = self._clock_ns()
        rows = self._execute(step)
        ended_ns = self._clock_ns()
        timing = StepTiming(
            forward_us=(ended_ns - began_ns) // 1000,
            stall_us=max(0, began_ns - max(received_ns, self._idle_since_ns)) // 1000,
            queued_us=max(0, began_ns - received_ns) // 1000,
        )
        self._idle_since_ns = ended_ns
        self._done.append(StepOutcome(rows, timing))

    def is_done(self) -> bool:
        """Whether a step was launched and not collected."""
        return bool(self._done)

    def collect(self) -> StepOutcome:
        """The oldest result."""
        return self._done.popleft()
