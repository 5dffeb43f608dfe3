"""How long the parts of a start took. Knows names and seconds, not what they stand for."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Phases:
    """Notes phases as they pass; `log` says them all in one line."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts what runs inside; a name may come again."""
        began = self._clock()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + self._clock() - began

    def log(self, logger: logging.Logger) -> None:
        """One line at level info."""
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self._seconds.items())
        logger.info("ready after: %s", parts)
