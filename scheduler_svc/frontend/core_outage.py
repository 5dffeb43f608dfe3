"""How long streams were without a core, and how soon they went on. Knows no socket and no clock."""

from __future__ import annotations

import logging
from collections.abc import Callable

CORE_RETURN = "core_return"
"""From the loss of a core until one answers that computes: death, spawn, imports, workers."""
CORE_FIRST_TOKEN = "core_first_token"
"""From then to the next token: what the service itself adds."""
_LOG = logging.getLogger(__name__)


class CoreOutage:
    """`lost`, then `told` with each status, then `moved` with each delivery of tokens."""

    def __init__(self, observe: Callable[[str, float], None]) -> None:
        """`observe` takes a part's name and its seconds."""
        self._observe = observe
        self._lost_at: float | None = None
        self._back_at: float | None = None

    def lost(self, now: float, *, num_streams: int) -> None:
        """The core is gone; the first loss counts until a token comes."""
        if num_streams and self._lost_at is None:
            self._lost_at = now
        self._back_at = None

    def told(self, now: float, *, computes: bool) -> None:
        """A core said how it is."""
        if self._lost_at is not None and self._back_at is None and computes:
            self._back_at = now

    def moved(self, now: float) -> None:
        """Tokens came."""
        if self._lost_at is None or self._back_at is None:
            return
        away_s, first_token_s = self._back_at - self._lost_at, now - self._back_at
        self._lost_at = self._back_at = None
        self._observe(CORE_RETURN, away_s)
        self._observe(CORE_FIRST_TOKEN, first_token_s)
        _LOG.info(
            "streams go on: %s %.3f s, %s %.3f s",
            *(CORE_RETURN, away_s, CORE_FIRST_TOKEN, first_token_s),
        )
