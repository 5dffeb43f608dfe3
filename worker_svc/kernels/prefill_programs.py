"""The device function of prefill_attention.py; its head says why it is cut like this."""

import triton.language as tl

from worker_svc.kernels.decode_programs import places, with_tile
from worker_svc.kernels.jit import kernel


@kernel(
    varying=("table_stride", "num_rows"),
    unaligned=("table_ptr", "cu_seqlens_ptr", "key_lens_ptr"),
)
def attend_tile(
    q_ptr: tl.tensor,
    keys_ptr: tl.tensor,
    values_ptr: tl.tensor,
    out_ptr: tl.tensor,
    table_ptr: tl.tensor,
    cu_seqlens_ptr: tl.tensor,
    key_lens_ptr: tl.tensor,
    q_stride: tl.tensor,
    table_stride: tl.tensor,
    num_rows: tl.tensor,
    scale: tl.constexpr,
    num_kv_heads: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
    block_size: tl.constexpr,
    query_tile: tl.constexpr,
    tile: tl.constexpr,
    rows_at_once: tl.constexpr,
) -> None:
    """Program (tile of tokens, key head): its queries over the keys that they may see."""
    tokens_per_tile: tl.constexpr = query_tile // group
    head = tl.program_id(1)
    # the last tiles of a prompt see the most keys: they begin first
    index = tl.num_programs(0) - 1 - tl.program_id(0)
    row, first_index = row_of_tile(cu_seqlens_ptr, num_rows, index, tokens_per_tile, rows_at_once)
    first_token = tl.load(cu_seqlens_ptr + row)
    num_queries = tl.load(cu_seqlens_ptr + row + 1) - first_token
    num_keys = tl.load(key_lens_ptr + row)
    start = (index - first_index) * tokens_per_tile
    if start >= num_queries:
        return

    line, dim = tl.arange(0, query_tile), tl.arange(0, padded_dim)
    token = start + line // group
    is_line = (line < tokens_per_tile * group) & (token < num_queries)
    is_query = is_line[:, None] & (dim < head_dim)[None, :]
    at_head = (head * group + line % group)[:, None] * head_dim + dim[None, :]
    at_token = (first_token + token).to(tl.int64)[:, None]
    q = tl.load(q_ptr + at_token * q_stride + at_head, mask=is_query, other=0.0)

    position = num_keys - num_queries + token
    first_position = num_keys - num_queries + start
    all_see = (first_position + 1) // tile * tile  # keys before here need no mask
    last = tl.minimum(first_position + tokens_per_tile, num_keys)
    peak = tl.full([query_tile], float("-inf"), tl.float32)
    total = tl.zeros([query_tile], tl.float32)
    summed = tl.zeros([query_tile, padded_dim], tl.float32)
    blocks_ptr = table_ptr + row.to(tl.int64) * table_stride
    peak, total, summed = attend_keys(
        q, keys_ptr, values_ptr, blocks_ptr, position, 0, all_see, head, dim, peak, total, summed,
        scale, num_kv_heads, head_dim, block_size, tile, False,
    )  # fmt: skip
    peak, total, summed = attend_keys(
        q, keys_ptr, values_ptr, blocks_ptr, position, all_see, last, head, dim, peak, total,
        summed, scale, num_kv_heads, head_dim, block_size, tile, True,
    )  # fmt: skip
    out = out_ptr + at_token * (num_kv_heads * group * head_dim) + at_head
    tl.store(out, summed / total[:, None], mask=is_query)


@kernel()
def row_of_tile(
    cu_seqlens_ptr: tl.tensor,
    num_rows: tl.tensor,
    index: tl.tensor,
    tokens_per_tile: tl.constexpr,
    rows_at_once: tl.constexpr,
) -> tl.tensor:
    """The row that tile `index` belongs to, and the index of that row's first tile.

    Row r owns the tiles from (tokens before it) // tile + r on: at least as many as it needs.
    """
    before = tl.load(cu_seqlens_ptr)
    num_started = 0
    for first in range(0, num_rows, rows_at_once):
        row = first + tl.arange(0, rows_at_once)
        start = tl.load(cu_seqlens_ptr + row, mask=row < num_rows, other=0) - before
        has_started = (start // tokens_per_tile + row <= index) & (row < num_rows)
        num_started += tl.sum(has_started.to(tl.int32), axis=0)
    row = num_started - 1
    start = tl.load(cu_seqlens_ptr + row) - before
    return row, start // tokens_per_tile + row


@kernel()
def attend_keys(
    q: tl.tensor,
    keys_ptr: tl.tensor,
    values_ptr: tl.tensor,
    blocks_ptr: tl.tensor,
    position: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    head: tl.tensor,
    dim: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    summed: tl.tensor,
    scale: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    block_size: tl.constexpr,
    tile: tl.constexpr,
    is_masked: tl.constexpr,
) -> tl.tensor:
    """Keys first..last, tile by tile; masked by each query's position, or seen by all of them."""
    place = places(blocks_ptr, first, last, block_size, tile)
    for start in range(first, last, tile):
        key = start + tl.arange(0, tile)
        offsets = (place[:, None] * num_kv_heads + head) * head_dim + dim[None, :]
        is_read = (dim < head_dim)[None, :]
        if is_masked:
            is_read = is_read & (key < last)[:, None]
        k = tl.load(keys_ptr + offsets, mask=is_read, other=0.0)
        v = tl.load(values_ptr + offsets, mask=is_read, other=0.0)
        place = places(blocks_ptr, start + tile, last, block_size, tile)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if is_masked:
            scores = tl.where(key[None, :] <= position[:, None], scores, float("-inf"))
        peak, total, summed = with_tile(scores, v, peak, total, summed)
    return peak, total, summed
