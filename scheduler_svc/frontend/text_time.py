"""How long a traced stream's text took to make. Knows nothing of text or of spans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Piece:
    """One piece of work."""

    has_made_text: bool = False


class TextTime:
    """Adds up pieces of work; times are the clock's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.begun_at: float | None = None
        """When the first piece that made text began."""
        self.ended_at = 0.0
        """When the latest such piece ended."""
        self.busy_s = 0.0
        """All of them together."""

    @contextmanager
    def piece(self) -> Iterator[Piece]:
        """Around one piece."""
        begun_at, piece = self._clock(), Piece()
        yield piece
        if not piece.has_made_text:
            return
        if self.begun_at is None:
            self.begun_at = begun_at
        self.ended_at = self._clock()
        self.busy_s += self.ended_at - begun_at
