"""Records of tokens: what the workers tell of a token beside its id. The core knows sizes alone.

A request may ask for a record of each generated token, for records of a stretch of its prompt, or
for one vector instead of tokens. Sizes are in 32-bit words.
"""

import enum
from dataclasses import dataclass

WORD_BYTES = 4


class Pooling(enum.Enum):
    """How hidden states become a vector."""

    LAST = "last"
    MEAN = "mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordWishes:
    """What a request wants to be told of its tokens."""

    token_words: int = 0  # of each generated token's record; 0: none
    prompt_from: int = 0  # first position of the prompt with a record; 0: none
    num_prompt_top: int = 0  # most likely tokens in a prompt's record
    pooling: Pooling | None = None  # a vector instead of tokens

    @property
    def prompt_words(self) -> int:
        """Of a prompt token's record: how likely it was, its rank, then pairs."""
        return 2 + 2 * self.num_prompt_top


NO_RECORDS = RecordWishes()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRecords:
    """Records of a stretch of a prompt, for its owner."""

    owner: int
    number: int
    first_position: int
    records: bytes
