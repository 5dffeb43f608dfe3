"""How long steps take, measured, and how many prompt tokens the next may take. Knows no rows.

Medians of a few recent steps stand for the time of a step of decode rows alone and for the time a
prompt token adds, so that one slow step (a compile, a capture) changes nothing.

Beside streams a step is to take at most so many times a step of decode rows alone, somewhat more if
it computes short prompts only. The more prompts there are for each stream, the less the limit holds
them up: those that wait count as much as those that run.
"""

from collections import deque
from statistics import median

from scheduler_svc.core.budget import Budget
from scheduler_svc.core.steering import Steering

_NUM_SAMPLES = 9
# Fewer prompt tokens say nothing about the time of one.
_MIN_MEASURED_TOKENS = 8
# How much longer than a step with a long prompt's piece one with short prompts only may be.
_SHORT_FACTOR = 1.5
# How much the limits give way for each prompt beyond the first, divided by the streams.
_LONG_BACKLOG_FACTOR, _SHORT_BACKLOG_FACTOR = 8.0, 32.0
# Time for prompts in a step, in steps of decode rows alone, whatever the limits say.
_LEAST_STRETCH = 0.1
# Steps with prompts in a row before one without, to measure that anew.
_MAX_MIXED_STEPS = 32


class Pace:
    """Step times and the budget of prompt tokens that they allow."""

    def __init__(self, *, target_token_time_s: float, max_step_stretch: float) -> None:
        self._target_us = target_token_time_s * 1e6
        self._max_step_stretch = max_step_stretch
        self._decode_us: deque[float] = deque(maxlen=_NUM_SAMPLES)
        self._prefill_token_us: deque[float] = deque(maxlen=_NUM_SAMPLES)
        self._short, self._long = Steering(), Steering()
        self._num_mixed_steps = 0  # since the last step of decode rows alone

    @property
    def decode_step_us(self) -> float:
        """Time of a step of decode rows alone; 0 before the first one."""
        return median(self._decode_us) if self._decode_us else 0.0

    def observe(self, *, num_decode_rows: int, num_prefill_tokens: int, forward_us: int) -> None:
        """Takes a step's measured time in."""
        if not num_prefill_tokens:
            self._decode_us.append(forward_us)
            self._num_mixed_steps = 0
            return
        rest_us = max(forward_us - (self.decode_step_us if num_decode_rows else 0.0), 0.0)
        if num_prefill_tokens >= _MIN_MEASURED_TOKENS:
            self._prefill_token_us.append(rest_us / num_prefill_tokens)
        if num_decode_rows:
            self._num_mixed_steps += 1
            for steering, factor in ((self._short, _SHORT_FACTOR), (self._long, 1.0)):
                allowed_us = self._allowed_us(factor)
                steering.observe(num_prefill_tokens, took_us=rest_us, allowed_us=allowed_us)

    def prefill_budget(self, *, num_decode_rows: int, num_prompts: int, most: int) -> Budget:
        """What prompts may take of the next step beside its decode rows, at most `most` tokens.

        `num_prompts` run or could start now. Once in many steps the budget is 0.
        """
        if not num_decode_rows:
            return Budget(most, most)
        backlog = max(num_prompts - 1, 0) / num_decode_rows if self._max_step_stretch else 0.0
        if self._num_mixed_steps >= _MAX_MIXED_STEPS and self._max_step_stretch:
            self._num_mixed_steps = 0
            return Budget(0, 0)
        num_tokens = self._short.num_tokens * (1 + _SHORT_BACKLOG_FACTOR * backlog)
        num_long_tokens = self._long.num_tokens * (1 + _LONG_BACKLOG_FACTOR * backlog)
        return Budget(min(most, int(num_tokens)), min(most, int(num_long_tokens)))

    @property
    def has_measured(self) -> bool:
        """Whether a prompt was computed yet."""
        return bool(self._prefill_token_us)

    def prefill_s(self, num_tokens: int) -> float:
        """Expected time to compute prompt tokens; 0 before anything is measured."""
        if not self._prefill_token_us:
            return 0.0
        return median(self._prefill_token_us) * num_tokens / 1e6

    def _allowed_us(self, factor: float) -> float:
        """Time that prompts may add to a step."""
        decode_us, longest_us = self.decode_step_us, self._target_us
        if decode_us and self._max_step_stretch:
            longest_us = min(longest_us, factor * self._max_step_stretch * decode_us)
        return max(longest_us - decode_us, _LEAST_STRETCH * decode_us)
