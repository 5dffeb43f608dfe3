"""How many prompt tokens fit a time beside decode rows, learnt from steps. Knows no clock, no rows.

What a chunk costs is not proportional to its tokens: the first ones are nearly free, those deep in
a long prompt cost many times the first. So the size is not computed from a rate: it follows the
steps that were measured, a little at a time.
"""

import math

# Progress of prompts whatever the time allows.
_MIN_TOKENS = 16
_FIRST_TOKENS = 256
# How far the size goes down after one step that took too long, and after the next one.
_FIRST_CUT, _LEAST_FACTOR = 0.7, 0.5
_MOST_FACTOR = 1.1
# A chunk this much of the size says that the size may grow; one this much above it is not its.
_FULL_SHARE, _OVER_SHARE = 0.8, 1.1


class Steering:
    """The size of chunks that fit."""

    def __init__(self) -> None:
        self._size = float(_FIRST_TOKENS)
        self._last_fitting = math.inf  # what the last step too long says to take

    @property
    def num_tokens(self) -> float:
        """Tokens that fit."""
        return self._size

    def observe(self, num_tokens: int, *, took_us: float, allowed_us: float) -> None:
        """A step with so many prompt tokens took so long for them."""
        ratio = allowed_us / max(took_us, 1.0)
        if ratio >= 1:
            self._last_fitting = math.inf
            if num_tokens >= _FULL_SHARE * self._size:
                self._size = max(self._size, num_tokens * min(ratio, _MOST_FACTOR))
        elif num_tokens <= _OVER_SHARE * self._size:
            fitting = num_tokens * max(ratio, _LEAST_FACTOR)
            least = min(self._last_fitting, _FIRST_CUT * num_tokens)
            self._size = min(self._size, max(fitting, least, _MIN_TOKENS))
            self._last_fitting = fitting
