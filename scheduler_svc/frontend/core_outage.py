"""How long streams were without a core, and how soon they went on. Knows no socket and no clock."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from scheduler_svc.frontend.record import Phase

CORE_RETURN = "core_return"
"""From the loss of a core until one answers that computes: death, spawn, imports, workers."""
CORE_FIRST_TOKEN = "core_first_token"
"""From then to the next token: what the service itself adds."""
_LOG = logging.getLogger(__name__)


class Waiting(Protocol):
    """A stream's record."""

    @property
    def num_tokens(self) -> int:
        """Tokens that came."""

    @property
    def phase(self) -> Phase:
        """CLOSED: it gave its client everything, or the client left."""

    @property
    def failure(self) -> Exception | None:
        """What ended it otherwise."""


class CoreOutage:
    """`lost`, then `told` with each status, then `moved` with each delivery of tokens."""

    def __init__(self, observe: Callable[[str, float], None]) -> None:
        """`observe` takes a part's name and its seconds."""
        self._observe = observe
        self._lost_at: float | None = None
        self._back_at: float | None = None
        self._waiting: list[tuple[Waiting, int]] = []

    def lost(self, now: float, streams: Iterable[Waiting]) -> None:
        """The core is gone; the first loss counts until one of its streams has a token."""
        self._waiting = [(stream, stream.num_tokens) for stream in streams]
        if self._lost_at is None:
            self._lost_at = now
        self._back_at = None

    def told(self, now: float, *, computes: bool) -> None:
        """A core said how it is."""
        if self._lost_at is not None and self._back_at is None and computes:
            self._back_at = now

    def moved(self, now: float) -> None:
        """Tokens came, for somebody."""
        if self._lost_at is None or self._back_at is None:
            return
        if not any(stream.num_tokens > num_tokens for stream, num_tokens in self._waiting):
            if all(_is_over(stream) for stream, _ in self._waiting):
                self._lost_at = self._back_at = None  # nobody waits any more
            return
        away_s, first_token_s = self._back_at - self._lost_at, now - self._back_at
        self._lost_at = self._back_at = None
        self._observe(CORE_RETURN, away_s)
        self._observe(CORE_FIRST_TOKEN, first_token_s)
        _LOG.info(
            "streams go on: %s %.3f s, %s %.3f s",
            *(CORE_RETURN, away_s, CORE_FIRST_TOKEN, first_token_s),
        )


def _is_over(stream: Waiting) -> bool:
    return stream.phase is Phase.CLOSED or stream.failure is not None
