"""Time for judging peers: it stands still while this process did not look. Knows nothing of
sockets.

After a blocking stretch (a long step, a suspended process) what a peer sent may still lie unread.
A peer must not be called silent for time in which nobody listened.
"""

from collections.abc import Callable

LONGEST_LOOK_S = 0.75
"""Loops wait at most half a second; a longer gap between two looks is a stretch of deafness."""


class PatientClock:
    """Seconds that pass only while the caller looks at least every `LONGEST_LOOK_S`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._looked_at = clock()
        self._elapsed_s = self._looked_at

    def __call__(self) -> float:
        """The time; never goes back."""
        looked_at = self._clock()
        gap_s = looked_at - self._looked_at
        self._looked_at = looked_at
        if gap_s <= LONGEST_LOOK_S:
            self._elapsed_s += gap_s
        return self._elapsed_s
