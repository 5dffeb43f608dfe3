"""What a step copies to the device beyond decode rows: chunks, and the rows that choose a token.

Runs of int32 cut into columns; the same cut on both sides of the copy. Knows where each column
lies; no kernel, no triton. The columns of decode rows are those of kernels/decode_columns.py.

Legend: C chunk rows, T tokens of chunks, S rows that choose a token, W places for stop ids a row.
"""

from dataclasses import dataclass
from typing import Self

import torch

NO_SLOT = -1
"""The slot of a padding row."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkColumns:
    """Rows that bring their tokens."""

    slots: torch.Tensor  # int32 [C]
    starts: torch.Tensor  # int32 [C] position of the row's first token
    first_tokens: torch.Tensor  # int32 [C + 1] the row's first token among the step's, then the end
    token_ids: torch.Tensor  # int32 [T] row after row

    @classmethod
    def num_words(cls, num_rows: int, num_tokens: int) -> int:
        """Length of the packed memory."""
        return 3 * num_rows + 1 + num_tokens

    @classmethod
    def of(cls, packed: torch.Tensor, *, num_rows: int, num_tokens: int) -> Self:
        """Cut the packed int32 memory."""
        assert packed.shape == (cls.num_words(num_rows, num_tokens),)
        return cls(
            slots=packed[:num_rows],
            starts=packed[num_rows : 2 * num_rows],
            first_tokens=packed[2 * num_rows : 3 * num_rows + 1],
            token_ids=packed[3 * num_rows + 1 :],
        )

    def clear(self) -> None:
        """Make every row a padding row."""
        self.slots.fill_(NO_SLOT)
        self.starts.zero_()
        self.first_tokens.zero_()
        self.token_ids.zero_()


@dataclass(frozen=True, slots=True, eq=False)
class SampleColumns:
    """How rows choose, when they are not simply the step's decode rows."""

    seeds: torch.Tensor  # int64 [S], the bits of an unsigned one
    slots: torch.Tensor  # int32 [S]
    last_indexes: torch.Tensor  # int32 [S] the row's last token among the step's
    positions: torch.Tensor  # int32 [S] of the token to choose
    temperature: torch.Tensor  # float32 [S], 0 for greedy rows
    min_position: torch.Tensor  # int32 [S]
    top_k: torch.Tensor  # int32 [S], the number of ids when off
    top_p: torch.Tensor  # float32 [S], 1 when off
    log_min_p: torch.Tensor  # float32 [S], -inf when off
    mask_rows: torch.Tensor  # int32 [S] the row's mask; negative: none
    stop_ids: torch.Tensor  # int32 [S, W], padded with a negative id

    @classmethod
    def num_words(cls, num_rows: int, *, num_stop_ids: int) -> int:
        """Length of the packed memory."""
        return num_rows * (11 + num_stop_ids)

    @classmethod
    def of(cls, packed: torch.Tensor, *, num_rows: int, num_stop_ids: int) -> Self:
        """Cut the packed int32 memory, which begins at a multiple of 8 bytes."""
        assert packed.shape == (cls.num_words(num_rows, num_stop_ids=num_stop_ids),)
        words = packed[2 * num_rows : 11 * num_rows].view(9, num_rows)
        return cls(
            seeds=packed[: 2 * num_rows].view(torch.int64),
            slots=words[0],
            last_indexes=words[1],
            positions=words[2],
            temperature=words[3].view(torch.float32),
            min_position=words[4],
            top_k=words[5],
            top_p=words[6].view(torch.float32),
            log_min_p=words[7].view(torch.float32),
            mask_rows=words[8],
            stop_ids=packed[11 * num_rows :].view(num_rows, num_stop_ids),
        )

    def clear(self) -> None:
        """Make every row a padding row: greedy, without a slot."""
        self.seeds.zero_()
        self.slots.fill_(NO_SLOT)
        for column in (self.last_indexes, self.positions, self.temperature, self.min_position):
            column.zero_()
        self.top_k.fill_(1)
        self.top_p.fill_(1.0)
        self.log_min_p.fill_(-torch.inf)
        self.mask_rows.fill_(-1)
        self.stop_ids.fill_(-1)
