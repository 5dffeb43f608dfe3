"""Says in the log that calls were refused, seldom enough that nobody can fill the log with it."""

import logging
import time
from collections.abc import Callable

_INTERVAL_S = 60.0
_LOG = logging.getLogger(__name__)


class DenialLog:
    """Refused calls of one port; the first is told at once, later ones together."""

    def __init__(self, port: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._port = port
        self._clock = clock
        self._told_at: float | None = None
        self._num_untold = 0

    def note(self) -> None:
        """A call without a known key was refused."""
        self._num_untold += 1
        now = self._clock()
        if self._told_at is not None and now - self._told_at < _INTERVAL_S:
            return
        _LOG.warning("%s port: refused %d calls without a known key", self._port, self._num_untold)
        self._told_at, self._num_untold = now, 0
