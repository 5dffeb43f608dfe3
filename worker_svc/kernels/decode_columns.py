"""What a decode step copies to the device: one run of int32, cut into columns.

Knows where each column lies, on either side of the copy; no kernel, no triton.

Legend: R rows of the bucket, W places for stop ids a row.
"""

from dataclasses import dataclass
from typing import Self

import torch

NO_SLOT = -1
"""The slot of a padding row."""
NO_BLOCK = -1
"""`new_index` of a row whose table stays as it is."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodeColumns:
    """Views of the packed memory; writing to them on the host is filling the copy."""

    seeds: torch.Tensor  # int64 [R], the bits of an unsigned one
    slots: torch.Tensor  # int32 [R]
    positions: torch.Tensor  # int32 [R] of the token to compute; its key is stored there
    new_index: torch.Tensor  # int32 [R] index in the slot's table of a block it got; or NO_BLOCK
    new_block: torch.Tensor  # int32 [R] that block
    temperature: torch.Tensor  # float32 [R], 0 for greedy rows
    min_position: torch.Tensor  # int32 [R]
    stop_ids: torch.Tensor  # int32 [R, W], padded with a negative id

    @classmethod
    def num_words(cls, num_rows: int, *, num_stop_ids: int) -> int:
        """Length of the packed memory."""
        return num_rows * (8 + num_stop_ids)

    @classmethod
    def of(cls, packed: torch.Tensor, *, num_rows: int, num_stop_ids: int) -> Self:
        """Cut the packed int32 memory, which begins at a multiple of 8 bytes."""
        assert packed.dtype == torch.int32
        assert packed.shape == (cls.num_words(num_rows, num_stop_ids=num_stop_ids),)
        # seeds come first: every second word is a multiple of 8 bytes
        seeds, rest = packed[: 2 * num_rows], packed[2 * num_rows :]
        columns = rest[: 6 * num_rows].view(6, num_rows).unbind(0)
        return cls(
            seeds=seeds.view(torch.int64),
            slots=columns[0],
            positions=columns[1],
            new_index=columns[2],
            new_block=columns[3],
            temperature=columns[4].view(torch.float32),
            min_position=columns[5],
            stop_ids=rest[6 * num_rows :].view(num_rows, num_stop_ids),
        )

    def clear(self) -> None:
        """Make every row a padding row."""
        self.seeds.zero_()
        self.slots.fill_(NO_SLOT)
        self.positions.zero_()
        self.new_index.fill_(NO_BLOCK)
        self.new_block.zero_()
        self.temperature.zero_()
        self.min_position.zero_()
        self.stop_ids.fill_(-1)
