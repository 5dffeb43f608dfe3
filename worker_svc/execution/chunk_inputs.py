"""Makes the inputs of rows that bring their tokens, on the device. Knows no model.

Legend: C chunk rows, N tokens of the step (decode rows' first), S slots, W blocks in a slot's
table, B tokens in a block.

One program takes a tile of one row's tokens: where they lie in the cache follows from the slot's
table. The row's programs share the copy of the table's used part. One row more than there are
takes the tokens behind the last row's: the padding of a graph, which is stored nowhere.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from worker_svc.execution.packed_columns import ChunkColumns
from worker_svc.kernels.jit import kernel

_TOKENS_AT_ONCE = 256
_BLOCKS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True, eq=False)
class ChunkInputs:
    """Where the inputs go. Tokens are those of the whole step, rows the chunk rows."""

    token_ids: torch.Tensor  # int64 [N]
    positions: torch.Tensor  # int64 [N]
    slot_mapping: torch.Tensor  # int64 [N], -1 in padding
    cu_seqlens_q: torch.Tensor  # int32 [C + 1] among the step's tokens
    cache_seqlens: torch.Tensor  # int32 [C], 0 in padding rows
    block_table: torch.Tensor  # int32 [C, W]


def prepare_chunks(
    columns: ChunkColumns, inputs: ChunkInputs, *, tables: torch.Tensor, block_size: int
) -> None:
    """Fill `inputs` from `columns` and the slots' `tables` int32 [S, W]."""
    num_rows, num_tokens = columns.slots.shape[0], inputs.token_ids.shape[0]
    assert tables.is_contiguous()
    assert inputs.block_table.is_contiguous()
    assert tables.shape[1] == inputs.block_table.shape[1]
    num_tiles = triton.cdiv(num_tokens, _TOKENS_AT_ONCE)
    _prepare[(num_rows + 1, num_tiles)](
        columns.slots,
        columns.starts,
        columns.first_tokens,
        columns.token_ids,
        tables,
        inputs.token_ids,
        inputs.positions,
        inputs.slot_mapping,
        inputs.cu_seqlens_q,
        inputs.cache_seqlens,
        inputs.block_table,
        num_rows,
        num_tokens,
        width=tables.shape[1],
        block_size=block_size,
        tokens_at_once=_TOKENS_AT_ONCE,
        blocks_at_once=_BLOCKS_AT_ONCE,
    )


@kernel(
    varying=("num_rows", "num_tokens"),
    unaligned=(
        "slots_ptr",
        "starts_ptr",
        "first_tokens_ptr",
        "new_ids_ptr",
        "token_ids_ptr",
        "positions_ptr",
        "slot_mapping_ptr",
        "cu_seqlens_ptr",
        "cache_seqlens_ptr",
        "block_table_ptr",
    ),
)
def _prepare(
    slots_ptr: tl.tensor,
    starts_ptr: tl.tensor,
    first_tokens_ptr: tl.tensor,
    new_ids_ptr: tl.tensor,
    tables_ptr: tl.tensor,
    token_ids_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    slot_mapping_ptr: tl.tensor,
    cu_seqlens_ptr: tl.tensor,
    cache_seqlens_ptr: tl.tensor,
    block_table_ptr: tl.tensor,
    num_rows: tl.tensor,
    num_tokens: tl.tensor,
    width: tl.constexpr,
    block_size: tl.constexpr,
    tokens_at_once: tl.constexpr,
    blocks_at_once: tl.constexpr,
) -> None:
    row, tile = tl.program_id(0), tl.program_id(1)
    num_tiles = tl.num_programs(1)
    first = tl.load(first_tokens_ptr + row)
    offset = tile * tokens_at_once + tl.arange(0, tokens_at_once)
    token = first + offset
    if tile == 0:
        tl.store(cu_seqlens_ptr + row, first)
    if row == num_rows:
        is_padding = token < num_tokens
        nothing = tl.zeros([tokens_at_once], tl.int64)
        tl.store(token_ids_ptr + token, nothing, mask=is_padding)
        tl.store(positions_ptr + token, nothing, mask=is_padding)
        tl.store(slot_mapping_ptr + token, nothing - 1, mask=is_padding)
        return
    num_new = tl.load(first_tokens_ptr + row + 1) - first
    slot = tl.load(slots_ptr + row)
    start = tl.load(starts_ptr + row)
    num_keys = tl.where(slot >= 0, start + num_new, 0)
    if tile == 0:
        tl.store(cache_seqlens_ptr + row, num_keys)
    if slot < 0:
        return
    table = tables_ptr + slot.to(tl.int64) * width
    is_new = offset < num_new
    position = start + offset
    block = tl.load(table + position // block_size, mask=is_new, other=0).to(tl.int64)
    # the packed tokens begin with the first chunk's
    new_id = tl.load(new_ids_ptr + token - tl.load(first_tokens_ptr), mask=is_new, other=0)
    tl.store(token_ids_ptr + token, new_id, mask=is_new)
    tl.store(positions_ptr + token, position, mask=is_new)
    tl.store(slot_mapping_ptr + token, block * block_size + position % block_size, mask=is_new)
    num_blocks = tl.cdiv(num_keys, block_size)
    for first_block in range(tile * blocks_at_once, num_blocks, num_tiles * blocks_at_once):
        entry = first_block + tl.arange(0, blocks_at_once)
        is_used = entry < num_blocks
        blocks = tl.load(table + entry, mask=is_used)
        tl.store(block_table_ptr + row.to(tl.int64) * width + entry, blocks, mask=is_used)
