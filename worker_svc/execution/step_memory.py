"""Where a step's inputs and results lie on the device: fixed places, for graphs to find again.

Legend: S slots, N most tokens of a step, W blocks in a slot's table, H hidden size.
"""

import torch

from worker_svc.execution.chunk_inputs import ChunkInputs
from worker_svc.execution.forward_batch import ForwardBatch
from worker_svc.execution.step_layout import (
    CopyAreas,
    ForwardShape,
    StepSizes,
    decode_columns,
)
from worker_svc.kernels.decode_columns import DecodeColumns
from worker_svc.kernels.decode_inputs import DecodeInputs


class StepMemory:
    """The device's side of every step, taken once."""

    def __init__(self, sizes: StepSizes, *, device: torch.device, dtype: torch.dtype) -> None:
        """`dtype` is that of hidden states."""
        slots, tokens = sizes.num_slots, sizes.most_tokens

        def zeros(*shape: int, kind: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(shape, dtype=kind, device=device)

        self.sizes = sizes
        self.areas = CopyAreas.of(sizes)
        self.packed = zeros(self.areas.num_words)
        self.tables = zeros(slots, sizes.blocks_per_slot)  # [S, W]
        self._flat_tables = self.tables.view(-1)
        self._new_blocks = self.areas.new_blocks(self.packed)
        self.last_tokens = zeros(slots)  # [S]
        self.results = zeros(2 * slots)  # tokens, then whether they failed
        self.hidden = zeros(tokens, sizes.hidden_size, kind=dtype)  # [N, H] between two graphs
        self._token_ids = zeros(tokens, kind=torch.int64)
        self._positions = zeros(tokens, kind=torch.int64)
        self._slot_mapping = zeros(tokens, kind=torch.int64)
        self._cache_seqlens = zeros(2 * slots)
        self._cu_seqlens_q = zeros(2 * slots + 1)
        self._block_table = zeros(2 * slots, sizes.blocks_per_slot)
        self._indexes = torch.arange(slots, device=device)

    def add_blocks(self, host: torch.Tensor, count: int) -> None:
        """Put `count` packed new blocks into the slots' tables."""
        packed = self._new_blocks[: 3 * count]
        packed.copy_(self.areas.new_blocks(host)[: 3 * count], non_blocking=True)
        places = packed[: 2 * count].view(torch.int64)
        self._flat_tables.index_copy_(0, places, packed[2 * count :])

    def decode_columns(self, num_rows: int) -> DecodeColumns:
        """The columns of a decode step, on the device."""
        return decode_columns(self.areas.forward(self.packed), num_rows)

    def decode_inputs(self, num_rows: int) -> DecodeInputs:
        """Where the inputs of decode rows go: the step's first tokens and rows."""
        return DecodeInputs(
            token_ids=self._token_ids[:num_rows],
            positions=self._positions[:num_rows],
            slot_mapping=self._slot_mapping[:num_rows],
            cache_seqlens=self._cache_seqlens[:num_rows],
            block_table=self._block_table[:num_rows],
        )

    def chunk_inputs(self, shape: ForwardShape) -> ChunkInputs:
        """Where the inputs of chunk rows go: behind the decode rows'."""
        first, last = shape.num_singles, shape.num_singles + shape.num_chunks
        return ChunkInputs(
            token_ids=self._token_ids[: shape.num_tokens],
            positions=self._positions[: shape.num_tokens],
            slot_mapping=self._slot_mapping[: shape.num_tokens],
            cu_seqlens_q=self._cu_seqlens_q[first : last + 1],
            cache_seqlens=self._cache_seqlens[first:last],
            block_table=self._block_table[first:last],
        )

    def batch(self, shape: ForwardShape) -> ForwardBatch:
        """The batch that layers read. For the host, lengths are the longest there can be."""
        num_rows = shape.num_singles + shape.num_chunks
        chunks = (shape.num_tokens, *(0,) * (shape.num_chunks - 1)) if shape.num_chunks else ()
        return ForwardBatch(
            token_ids=self._token_ids[: shape.num_tokens],
            positions=self._positions[: shape.num_tokens],
            slot_mapping=self._slot_mapping[: shape.num_tokens],
            block_table=self._block_table[:num_rows],
            cu_seqlens_q=self._cu_seqlens_q[: num_rows + 1],
            cache_seqlens=self._cache_seqlens[:num_rows],
            last_indexes=self._indexes[: shape.num_singles],
            query_lens=(1,) * shape.num_singles + chunks,
            key_lens=(self.sizes.num_positions,) * num_rows,
            num_single_rows=shape.num_singles,
        )
