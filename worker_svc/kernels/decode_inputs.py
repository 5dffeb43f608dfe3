"""Makes a decode graph's inputs on the device out of the step's columns. Knows no model.

Legend: R rows of the bucket, S slots, W blocks in a slot's table, B tokens in a block.

What a step must bring is a few words a row; the rest lies on the device already: each slot's last
token and block table. One program takes one row: it puts the row's new block into the slot's
table, works out the scalars and copies the table's used part. A block that comes with the step is
put in by comparing, not by reading back what the same launch wrote. Entries behind a row's last
block keep what they were: blocks of earlier steps, valid but unread.
"""

from dataclasses import dataclass
from typing import Self

import torch
import triton.language as tl

from worker_svc.kernels.decode_columns import DecodeColumns
from worker_svc.kernels.jit import kernel

_BLOCKS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True, eq=False)
class DecodeInputs:
    """A bucket's inputs; a graph captures these addresses."""

    token_ids: torch.Tensor  # int64 [R]
    positions: torch.Tensor  # int64 [R]
    slot_mapping: torch.Tensor  # int64 [R], -1 in padding rows
    cache_seqlens: torch.Tensor  # int32 [R], 0 in padding rows; also the sampled token's position
    block_table: torch.Tensor  # int32 [R, W]

    @classmethod
    def allocate(cls, num_rows: int, *, num_blocks: int, device: torch.device) -> Self:
        """Inputs of a bucket, with tables of `num_blocks`, all pointing to the trash block."""
        zeros = torch.zeros(3, num_rows, dtype=torch.int64, device=device)
        return cls(
            token_ids=zeros[0],
            positions=zeros[1],
            slot_mapping=zeros[2].fill_(-1),
            cache_seqlens=torch.zeros(num_rows, dtype=torch.int32, device=device),
            block_table=torch.zeros(num_rows, num_blocks, dtype=torch.int32, device=device),
        )


def prepare_decode(
    columns: DecodeColumns,
    inputs: DecodeInputs,
    *,
    last_tokens: torch.Tensor,
    tables: torch.Tensor,
    block_size: int,
) -> None:
    """Fill `inputs` from `columns`, `last_tokens` [S] and the slots' `tables` int32 [S, W].

    A row's new block is written into the slot's table; tables and inputs are equally wide.
    """
    num_rows = inputs.token_ids.shape[0]
    assert tables.is_contiguous()
    assert inputs.block_table.is_contiguous()
    assert tables.shape[1] == inputs.block_table.shape[1]
    _prepare[(num_rows,)](
        columns.slots,
        columns.positions,
        columns.new_index,
        columns.new_block,
        last_tokens,
        tables,
        inputs.token_ids,
        inputs.positions,
        inputs.slot_mapping,
        inputs.cache_seqlens,
        inputs.block_table,
        width=tables.shape[1],
        block_size=block_size,
        blocks_at_once=_BLOCKS_AT_ONCE,
    )


@kernel(
    unaligned=(
        "slots_ptr",
        "positions_ptr",
        "new_index_ptr",
        "new_block_ptr",
        "token_ids_ptr",
        "out_positions_ptr",
        "slot_mapping_ptr",
        "cache_seqlens_ptr",
    )
)
def _prepare(
    slots_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    new_index_ptr: tl.tensor,
    new_block_ptr: tl.tensor,
    last_tokens_ptr: tl.tensor,
    tables_ptr: tl.tensor,
    token_ids_ptr: tl.tensor,
    out_positions_ptr: tl.tensor,
    slot_mapping_ptr: tl.tensor,
    cache_seqlens_ptr: tl.tensor,
    block_table_ptr: tl.tensor,
    width: tl.constexpr,
    block_size: tl.constexpr,
    blocks_at_once: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row)
    if slot < 0:
        tl.store(token_ids_ptr + row, 0)
        tl.store(out_positions_ptr + row, 0)
        tl.store(slot_mapping_ptr + row, -1)
        tl.store(cache_seqlens_ptr + row, 0)
        return
    position = tl.load(positions_ptr + row)
    new_index = tl.load(new_index_ptr + row)
    new_block = tl.load(new_block_ptr + row)
    table = tables_ptr + slot.to(tl.int64) * width
    index = position // block_size
    block = tl.where(index == new_index, new_block, tl.load(table + index))
    tl.store(token_ids_ptr + row, tl.load(last_tokens_ptr + slot))
    tl.store(out_positions_ptr + row, position)
    tl.store(slot_mapping_ptr + row, block.to(tl.int64) * block_size + position % block_size)
    tl.store(cache_seqlens_ptr + row, position + 1)
    for first in range(0, index + 1, blocks_at_once):
        entry = first + tl.arange(0, blocks_at_once)
        is_used = entry <= index
        blocks = tl.where(entry == new_index, new_block, tl.load(table + entry, mask=is_used))
        tl.store(block_table_ptr + row * width + entry, blocks, mask=is_used)
    tl.store(table + new_index, new_block, mask=new_index >= 0)
