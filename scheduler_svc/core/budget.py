"""Prompt tokens that a step may take, and what is left of them. Knows no sequences."""

from dataclasses import dataclass

# A prompt of at most this many budgets is short.
_MOST_BUDGETS = 4


@dataclass(frozen=True, slots=True)
class Budget:
    """Prompt tokens that a step may take.

    A short prompt makes the streams beside it wait a few times, a long one again and again: pieces
    of long ones bring the step's tokens to the lower limit at most.
    """

    num_tokens: int
    num_long_tokens: int

    @property
    def num_sure_tokens(self) -> int:
        """What the prompt that runs longest is sure of: a quarter."""
        return max(self.num_long_tokens // 4, 1)

    def is_long(self, num_prompt_tokens: int) -> bool:
        """Whether a prompt of so many tokens is held to the lower limit."""
        return num_prompt_tokens > _MOST_BUDGETS * self.num_tokens


class Allowance:
    """What is left of a budget while a step is filled: first whole ends of prompts, then pieces."""

    def __init__(self, budget: Budget, *, num_reserved: int) -> None:
        self._budget = budget
        self._num_given = 0
        self._num_reserved = num_reserved
        self._num_left_for_long = 0

    @property
    def num_left(self) -> int:
        """Tokens that are not reserved."""
        return self._budget.num_tokens - self._num_given - self._num_reserved

    def open_to_pieces(self) -> None:
        """Lifts the reserve; long prompts get it whatever was given before."""
        under_limit = self._budget.num_long_tokens - self._num_given
        self._num_left_for_long = max(under_limit, self._num_reserved)
        self._num_reserved = 0

    def num_left_for(self, num_prompt_tokens: int) -> int:
        """Tokens that a piece of a prompt of so many tokens may have."""
        if not self._budget.is_long(num_prompt_tokens):
            return self.num_left
        return max(min(self.num_left, self._num_left_for_long), 0)

    def take(self, num_tokens: int) -> None:
        """Gives tokens away."""
        self._num_given += num_tokens
        self._num_left_for_long -= num_tokens
