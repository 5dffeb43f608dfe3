"""Watches one output's text for stop strings, across any borders. Knows nothing of tokens.

The earliest end of a match wins; of those that end together, the one that began first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_svc.frontend.text.stop_automaton import StopAutomaton


@dataclass(frozen=True, kw_only=True, slots=True)
class StopMatch:
    """A stop string in the text; positions are characters from the beginning of the output."""

    stop_string: str
    begin: int
    end: int


class StopMatcher:
    """Takes the text piece by piece; says what is found and how much is safe to show."""

    def __init__(self, stop_strings: Sequence[str], *, include_stop: bool = False) -> None:
        self._automaton = StopAutomaton(stop_strings) if stop_strings else None
        self._state = self._automaton.root if self._automaton else None
        self._include_stop = include_stop
        self._num_read = 0

    @property
    def num_safe(self) -> int:
        """How many characters no coming match can take back.

        The others are an end of the text that some stop string begins with.
        """
        return self._num_read - (self._state.num_held if self._state else 0)

    def read(self, text: str, *, may_stop: bool = True) -> StopMatch | None:
        """Take the next piece and return the first match that ends in it.

        Nothing may be read after a match. With `may_stop` false, matches that end in this piece do
        not count, while one that only begins in it may.
        """
        if self._automaton is None or self._state is None:
            self._num_read += len(text)
            return None
        position = 0
        while position < len(text):
            if self._state is self._automaton.root:
                position = self._automaton.find_first_character(text, position)
                if position == len(text):
                    break
            self._state = self._automaton.advance(self._state, text[position])
            position += 1
            if may_stop and self._state.hit is not None:
                return self._match(self._state.hit, end=self._num_read + position)
        self._num_read += len(text)
        return None

    def _match(self, stop_string: str, *, end: int) -> StopMatch:
        return StopMatch(stop_string=stop_string, begin=end - len(stop_string), end=end)

    def cut(self, match: StopMatch) -> int:
        """Return how many characters of the output remain visible."""
        return match.end if self._include_stop else match.begin
