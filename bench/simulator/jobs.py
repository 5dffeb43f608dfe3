"""Requests as clients mean them: conversations of turns. Knows nothing of when they are served."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from bench.simulator.prompts import Segment, prompt_tokens


@dataclass(frozen=True, slots=True)
class Turn:
    """A message to the model, sent some time after the answer to the one before."""

    message: tuple[Segment, ...]
    answer: Segment
    think_s: float = 0.0
    # Whether the answer ends because the request says so; else by an end token nobody foresees.
    is_length_known: bool = False


@dataclass(frozen=True)
class Conversation:
    """Turns one after the other, each prompt with everything before it."""

    start_s: float
    turns: tuple[Turn, ...]
    tenant: str = "default"
    priority: int = 0  # lower is more urgent

    @cached_property
    def answers(self) -> frozenset[int]:
        """Keys of the segments that are answers."""
        return frozenset(turn.answer.key for turn in self.turns)

    def prompt(self, turn_index: int) -> tuple[Segment, ...]:
        """The whole prompt of a turn."""
        segments: list[Segment] = []
        for turn in self.turns[:turn_index]:
            segments += [*turn.message, turn.answer]
        return (*segments, *self.turns[turn_index].message)


@dataclass(frozen=True)
class Job:
    """One turn on its way through a replica."""

    number: int  # from 1
    conversation: Conversation
    turn_index: int
    prompt: tuple[Segment, ...]

    @property
    def turn(self) -> Turn:
        """What is asked."""
        return self.conversation.turns[self.turn_index]

    @cached_property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return sum(segment.num_tokens for segment in self.prompt)

    def tokens(self) -> npt.NDArray[np.int32]:
        """The prompt's tokens."""
        return prompt_tokens(self.prompt, self.conversation.answers)
