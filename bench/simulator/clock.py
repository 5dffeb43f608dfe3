"""Simulated time: actions in the order of their moments. Knows nothing of what they do."""

import heapq
import math
from collections.abc import Callable


class Clock:
    """Runs actions one after the other; time stands still while one runs."""

    def __init__(self) -> None:
        self.now = 0.0
        self._num_planned = 0
        self._actions: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Plans an action; those of one moment run in the order of planning."""
        self._num_planned += 1
        heapq.heappush(self._actions, (max(time, self.now), self._num_planned, action))

    def run(self, *, until: float = math.inf) -> None:
        """Runs all actions up to and with a moment, those included that are planned meanwhile."""
        while self._actions and self._actions[0][0] <= until:
            self.now, _, action = heapq.heappop(self._actions)
            action()
        if math.isfinite(until):
            self.now = max(self.now, until)
