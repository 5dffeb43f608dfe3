"""Recorded work by name: made once, run many times. Knows no model and no step."""

import logging
import time
from collections.abc import Callable, Hashable

from worker_svc.execution.graph_device import GraphDevice

_LOGGER = logging.getLogger(__name__)


class Graphs:
    """What was recorded so far. With graphs off, work is launched piece by piece each time."""

    def __init__(self, device: GraphDevice, *, is_on: bool) -> None:
        self._device = device
        self.is_on = is_on
        self._replays: dict[Hashable, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._replays)

    def has(self, key: Hashable) -> bool:
        """Whether running this work needs no recording first."""
        return not self.is_on or key in self._replays

    def make(self, key: Hashable, launch: Callable[[], None]) -> None:
        """Record the work under this name, unless that is done; launches it once.

        Its inputs must be such that a run changes nothing.
        """
        if self.has(key):
            return
        began = time.monotonic()
        launch()  # compiles what was never launched before
        self._replays[key] = self._device.record(launch)
        _LOGGER.debug("recorded %s in %.0f ms", key, 1000 * (time.monotonic() - began))

    def run(self, key: Hashable, launch: Callable[[], None]) -> None:
        """Run the recorded work, or the work itself where nothing is recorded."""
        replay = self._replays.get(key)
        (launch if replay is None else replay)()
