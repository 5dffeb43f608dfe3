"""How the memory that a step copies to the device is cut, on either side. Knows no kernel.

Three areas: inputs of the forward pass, how rows choose, new blocks. A program's columns lie at
the same place in each step, for graphs read them there.

Legend: D decode rows, C chunk rows, N tokens of both.
"""

from dataclasses import dataclass
from typing import Self

import torch

from worker_svc.execution.packed_columns import ChunkColumns, SampleColumns
from worker_svc.kernels.decode_columns import DecodeColumns

STOP_IDS_A_ROW = 8
"""Stop ids of a row that a step can carry; rows with more, and too early for them, get a mask."""
MOST_NEW_BLOCKS = 16_384
"""New blocks that one copy can carry."""


@dataclass(frozen=True, slots=True)
class StepSizes:
    """What bounds a step."""

    num_slots: int
    most_tokens: int
    blocks_per_slot: int
    block_size: int
    hidden_size: int
    num_positions: int


@dataclass(frozen=True, slots=True)
class ForwardShape:
    """What a mixed step is cut for: decode rows, rows that bring tokens, tokens of both."""

    num_singles: int
    num_chunks: int
    num_tokens: int

    @property
    def num_words(self) -> int:
        """Words to copy: the columns of decode rows, then those of chunks."""
        singles = DecodeColumns.num_words(self.num_singles, num_stop_ids=0)
        return singles + ChunkColumns.num_words(self.num_chunks, self.num_tokens)

    def columns(self, packed: torch.Tensor) -> tuple[DecodeColumns, ChunkColumns]:
        """Cut the packed memory."""
        end = DecodeColumns.num_words(self.num_singles, num_stop_ids=0)
        singles = DecodeColumns.of(packed[:end], num_rows=self.num_singles, num_stop_ids=0)
        chunks = ChunkColumns.of(
            packed[end : self.num_words], num_rows=self.num_chunks, num_tokens=self.num_tokens
        )
        return singles, chunks


@dataclass(frozen=True, slots=True)
class CopyAreas:
    """How the memory of one copy is cut, on either side: forward inputs, choices, new blocks."""

    num_forward_words: int
    num_sample_words: int

    @classmethod
    def of(cls, sizes: StepSizes) -> Self:
        """Large enough for any step within the sizes."""
        largest = ForwardShape(sizes.num_slots, sizes.num_slots, sizes.most_tokens).num_words
        decode = DecodeColumns.num_words(sizes.num_slots, num_stop_ids=STOP_IDS_A_ROW)
        samples = SampleColumns.num_words(sizes.num_slots, num_stop_ids=STOP_IDS_A_ROW)
        return cls(_even(max(largest, decode)), _even(samples))

    @property
    def num_words(self) -> int:
        """Of all areas."""
        return self.num_forward_words + self.num_sample_words + 3 * MOST_NEW_BLOCKS

    def forward(self, memory: torch.Tensor) -> torch.Tensor:
        """Inputs of the forward pass."""
        return memory[: self.num_forward_words]

    def samples(self, memory: torch.Tensor) -> torch.Tensor:
        """How rows choose."""
        return memory[self.num_forward_words : self.num_forward_words + self.num_sample_words]

    def new_blocks(self, memory: torch.Tensor) -> torch.Tensor:
        """For n new blocks: n places in the tables (int64), then n blocks (int32)."""
        return memory[self.num_forward_words + self.num_sample_words :]


def _even(count: int) -> int:
    """Areas begin at multiples of 8 bytes."""
    return count + count % 2


def decode_columns(area: torch.Tensor, num_rows: int) -> DecodeColumns:
    """Cut the forward area for a decode step."""
    num_words = DecodeColumns.num_words(num_rows, num_stop_ids=STOP_IDS_A_ROW)
    return DecodeColumns.of(area[:num_words], num_rows=num_rows, num_stop_ids=STOP_IDS_A_ROW)


def sample_columns(area: torch.Tensor, num_rows: int) -> SampleColumns:
    """Cut the sample area."""
    num_words = SampleColumns.num_words(num_rows, num_stop_ids=STOP_IDS_A_ROW)
    return SampleColumns.of(area[:num_words], num_rows=num_rows, num_stop_ids=STOP_IDS_A_ROW)
