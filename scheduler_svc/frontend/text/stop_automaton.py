"""Finds many stop strings in one pass over a text (Aho and Corasick 1975).

Knows nothing of tokens or streams. States are made when a text first reaches them, so a thousand
long strings cost nothing until the text begins to look like one of them; their number never
exceeds the total length of the strings.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise


class State:
    """The longest end of the text so far that some stop string begins with."""

    __slots__ = ("children", "depth", "high", "hit", "low", "num_held", "shorter")

    def __init__(self, *, low: int, high: int, depth: int) -> None:
        self.low = low  # the sorted strings low..high-1 begin with these `depth` characters
        self.high = high
        self.depth = depth
        self.children: dict[str, State | None] = {}
        self.shorter: State = self  # the next shorter such end; the root's is itself
        self.hit: str | None = None  # the longest stop string that ends here
        self.num_held = 0  # how many last characters may still become a stop string


class StopAutomaton:
    """The states of one set of stop strings."""

    def __init__(self, stop_strings: Sequence[str]) -> None:
        if not stop_strings or not all(stop_strings):
            raise ValueError("stop strings must not be empty")
        self._strings = sorted(set(stop_strings))
        self.root = State(low=0, high=len(self._strings), depth=0)
        first_characters = dict.fromkeys(string[0] for string in self._strings)
        self._first = re.compile(f"[{''.join(map(re.escape, first_characters))}]")

    def find_first_character(self, text: str, begin: int) -> int:
        """Return where, from `begin` on, a stop string may begin; the text's length if nowhere."""
        match = self._first.search(text, begin)
        return match.start() if match else len(text)

    def advance(self, state: State, character: str) -> State:
        """Return the state after one more character."""
        made: list[State] = []
        while True:
            child, is_new = self._child(state, character)
            if child is not None and not is_new:
                made.append(child)
                break
            if child is not None:
                made.append(child)
            if state is self.root:
                made.append(self.root)
                break
            state = state.shorter
        for longer, shorter in reversed(list(pairwise(made))):
            self._complete(longer, shorter)
        return made[0]

    def _child(self, state: State, character: str) -> tuple[State | None, bool]:
        """Return the state one character deeper, and whether it was made just now."""
        if character in state.children:
            return state.children[character], False
        depth = state.depth

        def next_character(string: str) -> str:
            return string[depth : depth + 1]

        low = bisect_left(self._strings, character, state.low, state.high, key=next_character)
        high = bisect_right(self._strings, character, low, state.high, key=next_character)
        child = State(low=low, high=high, depth=depth + 1) if low < high else None
        state.children[character] = child
        return child, child is not None

    def _complete(self, state: State, shorter: State) -> None:
        first = self._strings[state.low]
        is_whole = len(first) == state.depth
        has_longer = state.high - state.low > 1 or not is_whole
        state.shorter = shorter
        state.hit = first if is_whole else shorter.hit
        state.num_held = state.depth if has_longer else shorter.num_held
