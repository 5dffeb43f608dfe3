"""How long steps take, measured, and how many prompt tokens the next may take. Knows no rows.

Medians of a few recent steps stand for the time of a step of decode rows alone and for the time a
prompt token adds, so that one slow step (a compile, a capture) changes nothing.
"""

from collections import deque
from statistics import median

_NUM_SAMPLES = 9
# Progress of prompts whatever the target says.
_MIN_CHUNK_TOKENS = 16
# Prompt tokens beside decode rows before anything is measured.
_FIRST_CHUNK_TOKENS = 256
# Fewer prompt tokens say nothing about the time of one.
_MIN_MEASURED_TOKENS = 8


class Pace:
    """Step times and the chunk budget they allow."""

    def __init__(self, *, target_token_time_s: float) -> None:
        self._target_us = target_token_time_s * 1e6
        self._decode_us: deque[float] = deque(maxlen=_NUM_SAMPLES)
        self._prefill_token_us: deque[float] = deque(maxlen=_NUM_SAMPLES)

    @property
    def decode_step_us(self) -> float:
        """Time of a step of decode rows alone; 0 before the first one."""
        return median(self._decode_us) if self._decode_us else 0.0

    def observe(self, *, num_decode_rows: int, num_prefill_tokens: int, forward_us: int) -> None:
        """Takes a step's measured time in."""
        if not num_prefill_tokens:
            self._decode_us.append(forward_us)
        elif num_prefill_tokens >= _MIN_MEASURED_TOKENS:
            rest = forward_us - (self.decode_step_us if num_decode_rows else 0.0)
            self._prefill_token_us.append(max(rest, 0.0) / num_prefill_tokens)

    def prefill_budget(self, *, num_decode_rows: int, most: int) -> int:
        """Prompt tokens that the next step may take beside its decode rows, at most `most`."""
        if not num_decode_rows:
            return most
        if not self._prefill_token_us:
            return min(most, _FIRST_CHUNK_TOKENS)
        left_us = self._target_us - self.decode_step_us
        token_us = max(median(self._prefill_token_us), 1e-3)
        return min(most, max(int(left_us / token_us), _MIN_CHUNK_TOKENS))

    def prefill_s(self, num_tokens: int) -> float:
        """Expected time to compute prompt tokens; 0 before anything is measured."""
        if not self._prefill_token_us:
            return 0.0
        return median(self._prefill_token_us) * num_tokens / 1e6
