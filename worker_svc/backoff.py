"""How long to wait before the next start. Knows nothing of what is started, and has no clock."""

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 10.0
STABLE_AFTER_S = 30.0


class Backoff:
    """Doubles the delay with every short life, begins anew after a long one."""

    def __init__(self) -> None:
        self._next_s = FIRST_DELAY_S

    def delay_after(self, lived_s: float) -> float:
        """The delay before the next start, after one that lived this long."""
        if lived_s >= STABLE_AFTER_S:
            self._next_s = FIRST_DELAY_S
        delay = self._next_s
        self._next_s = min(2 * self._next_s, LONGEST_DELAY_S)
        return delay
