"""Log lines about what strangers cause, seldom enough that nobody can fill the log with them."""

import logging
import time
from collections.abc import Callable

_INTERVAL_S = 60.0


class SeldomLog:
    """One kind of event; the first is told at once, later ones together, once a minute at most."""

    def __init__(
        self, logger: logging.Logger, text: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`text` has a %d for how many events the line stands for."""
        self._logger = logger
        self._text = text
        self._clock = clock
        self._told_at: float | None = None
        self._num_untold = 0

    def note(self) -> None:
        """It happened once more."""
        self._num_untold += 1
        now = self._clock()
        if self._told_at is not None and now - self._told_at < _INTERVAL_S:
            return
        self._logger.warning(self._text, self._num_untold)
        self._told_at, self._num_untold = now, 0
