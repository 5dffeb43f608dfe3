"""When the next plan goes out, and when a step is overdue. Knows nothing of what steps do beyond
their size.

A plan is sent shortly before the predicted end of the step that runs, so that a request that
arrives meanwhile waits for one step, not for two. The prediction errs on the early side: a worker
that waits costs more than an arrival that does.
"""

from collections import deque
from dataclasses import dataclass

_LEAST_LEAD_S = 0.002
_LEAD_SHARE = 0.1  # of the predicted step
_LEAD_DEVIATIONS = 2.0
_DEADLINE_FACTOR = 20.0  # of the predicted step
_UNMEASURED_FACTOR = 3.0  # of the floor, while a step cannot be predicted
# towards shorter steps at once, towards longer ones with patience
_GAIN_DOWN = 0.5
_GAIN_UP = 0.125
_DEVIATION_GAIN = 0.25


@dataclass(slots=True)
class _StepOut:
    num_decode_rows: int
    num_prefill_tokens: int
    issued_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """How long a step took, as the core sees it: from when it could run to its result."""

    kind: str  # decode, prefill or mixed
    seconds: float


class Pacer:
    """Timing of the steps of one epoch after the other. Every `now` is in seconds on one clock."""

    def __init__(self, *, deadline_floor_s: float) -> None:
        self._deadline_floor_s = deadline_floor_s
        self._out: deque[_StepOut] = deque()
        self._last_done_at = 0.0
        self._decode_s: float | None = None  # a step without prompt tokens
        self._deviation_s = 0.0
        self._prefill_token_s: float | None = None  # on top, for each prompt token

    def issue(self, *, num_decode_rows: int, num_prefill_tokens: int, now: float) -> None:
        """A plan was sent."""
        self._out.append(_StepOut(num_decode_rows, num_prefill_tokens, now))

    def complete(self, now: float) -> StepTiming:
        """The result of the oldest step is there."""
        step = self._out.popleft()
        seconds = now - max(step.issued_at, self._last_done_at)
        self._last_done_at = now
        self._learn(step, seconds)
        if not step.num_prefill_tokens:
            kind = "decode"
        else:
            kind = "mixed" if step.num_decode_rows else "prefill"
        return StepTiming(kind=kind, seconds=seconds)

    def forget_steps(self) -> None:
        """The epoch ended: what is out never completes. What was learned stays."""
        self._out.clear()

    @property
    def is_step_out(self) -> bool:
        """Whether a plan was sent whose result is not there."""
        return bool(self._out)

    def plan_due_at(self) -> float:
        """When to send the next plan; in the past when at once."""
        if not self._out:
            return 0.0
        running = self._out[-1]
        predicted = self._predict(running)
        if predicted is None:
            return 0.0
        lead = max(_LEAST_LEAD_S, _LEAD_SHARE * predicted) + _LEAD_DEVIATIONS * self._deviation_s
        return max(running.issued_at, self._last_done_at) + predicted - lead

    def deadline(self) -> float | None:
        """When the oldest step is so late that its workers are given up; None while none is out."""
        return self._oldest_due(self._deadline_floor_s)

    def late_at(self) -> float | None:
        """When the oldest step is late enough that nobody should be told all is well."""
        return self._oldest_due(self._deadline_floor_s / 2)

    def _oldest_due(self, floor_s: float) -> float | None:
        if not self._out:
            return None
        oldest = self._out[0]
        predicted = self._predict(oldest)
        if predicted is None:
            limit = _UNMEASURED_FACTOR * floor_s
        else:
            limit = max(floor_s, _DEADLINE_FACTOR * predicted)
        return max(oldest.issued_at, self._last_done_at) + limit

    def _predict(self, step: _StepOut) -> float | None:
        if not step.num_prefill_tokens:
            return self._decode_s
        if self._prefill_token_s is None:
            return None
        return (self._decode_s or 0.0) + self._prefill_token_s * step.num_prefill_tokens

    def _learn(self, step: _StepOut, seconds: float) -> None:
        if step.num_prefill_tokens:
            rest = max(0.0, seconds - (self._decode_s or 0.0)) / step.num_prefill_tokens
            self._prefill_token_s = _moved(self._prefill_token_s, rest)
            return
        if self._decode_s is not None:
            error = abs(seconds - self._decode_s)
            self._deviation_s += _DEVIATION_GAIN * (error - self._deviation_s)
        self._decode_s = _moved(self._decode_s, seconds)


def _moved(mean: float | None, value: float) -> float:
    if mean is None:
        return value
    return mean + (_GAIN_DOWN if value < mean else _GAIN_UP) * (value - mean)
