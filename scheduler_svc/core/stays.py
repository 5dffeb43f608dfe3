"""How long sequences hold their slots, measured. Knows no sequences."""

from collections import deque
from statistics import fmean

_NUM_SAMPLES = 64


class Stays:
    """The last stays that came to their end."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_NUM_SAMPLES)

    def note(self, seconds: float) -> None:
        """One ended after so long."""
        self._seconds.append(seconds)

    @property
    def typical_s(self) -> float:
        """How long one lasts; 0 before any has ended."""
        return fmean(self._seconds) if self._seconds else 0.0
