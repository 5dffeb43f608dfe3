"""The device function of decode_attention.py; its head says why it is cut like this."""

import triton.language as tl

from worker_svc.kernels.jit import kernel

# of what is not there; finite, so that a difference of two is a number
_BELOW_ALL: tl.constexpr = tl.constexpr(-1e30)


@kernel(
    varying=("table_stride", "num_splits"),
    unaligned=("table_ptr", "key_lens_ptr"),
)
def attend_split(
    q_ptr: tl.tensor,
    keys_ptr: tl.tensor,
    values_ptr: tl.tensor,
    out_ptr: tl.tensor,
    table_ptr: tl.tensor,
    key_lens_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    peaks_ptr: tl.tensor,
    counters_ptr: tl.tensor,
    q_stride: tl.tensor,
    table_stride: tl.tensor,
    num_splits: tl.tensor,
    scale: tl.constexpr,
    num_kv_heads: tl.constexpr,
    group: tl.constexpr,
    padded_group: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
    block_size: tl.constexpr,
    tile: tl.constexpr,
    padded_width: tl.constexpr,
    splits_at_once: tl.constexpr,
) -> None:
    """Program (key head, split, row): the group's queries over one split of the row's keys."""
    head, split, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_keys = tl.load(key_lens_ptr + row)
    split_keys = tl.cdiv(num_keys, num_splits * tile) * tile
    first = split * split_keys
    last = tl.minimum(first + split_keys, num_keys)
    if (first >= last) & (split > 0):
        return

    query, dim = tl.arange(0, padded_group), tl.arange(0, padded_dim)
    is_query = (query < group)[:, None] & (dim < head_dim)[None, :]
    at_query = query[:, None] * head_dim + dim[None, :]
    group_start = row.to(tl.int64) * q_stride + head * (group * head_dim)
    q = tl.load(q_ptr + group_start + at_query, mask=is_query, other=0.0)

    peak = tl.full([padded_group], float("-inf"), tl.float32)
    total = tl.zeros([padded_group], tl.float32)
    summed = tl.zeros([padded_group, padded_dim], tl.float32)
    blocks_ptr = table_ptr + row.to(tl.int64) * table_stride
    place = places(blocks_ptr, first, last, block_size, tile)
    for start in range(first, last, tile):
        is_key = start + tl.arange(0, tile) < last
        offsets = (place[:, None] * num_kv_heads + head) * head_dim + dim[None, :]
        is_read = is_key[:, None] & (dim < head_dim)[None, :]
        k = tl.load(keys_ptr + offsets, mask=is_read, other=0.0)
        v = tl.load(values_ptr + offsets, mask=is_read, other=0.0)
        # the next tile's blocks now, so that its reads never wait for them
        place = places(blocks_ptr, start + tile, last, block_size, tile)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        peak, total, summed = with_tile(scores, v, peak, total, summed)

    item = row.to(tl.int64) * num_kv_heads + head
    out = out_ptr + item * (group * head_dim)
    num_active = tl.cdiv(num_keys, tl.maximum(split_keys, 1))
    if num_active <= 1:
        # a row without keys (padding) has a total of 0
        mean = summed / tl.where(total > 0.0, total, 1.0)[:, None]
        tl.store(out + at_query, mean, mask=is_query)
    else:
        sums = sums_ptr + item * num_splits * (group * head_dim)
        peaks = peaks_ptr + item * num_splits * (2 * group)
        tl.store(sums + split * (group * head_dim) + at_query, summed, mask=is_query)
        tl.store(peaks + split * (2 * group) + query, peak, mask=query < group)
        tl.store(peaks + split * (2 * group) + group + query, total, mask=query < group)
        if is_last_to_arrive(counters_ptr + item, num_active):
            store_combined(
                out, sums, peaks, num_active, group, head_dim, padded_width, splits_at_once
            )


@kernel()
def places(
    blocks_ptr: tl.tensor,
    start: tl.tensor,
    last: tl.tensor,
    block_size: tl.constexpr,
    tile: tl.constexpr,
) -> tl.tensor:
    """int64 [tile]: where keys start.. lie in the cache; tiles start at multiples of a tile.

    From `last` on, places in the trash block.
    """
    key = start + tl.arange(0, tile)
    if block_size % tile == 0:
        block = tl.load(blocks_ptr + start // block_size, mask=start < last, other=0)
        return block.to(tl.int64) * block_size + key % block_size
    blocks = tl.load(blocks_ptr + key // block_size, mask=key < last, other=0)
    return blocks.to(tl.int64) * block_size + key % block_size


@kernel()
def with_tile(
    scores: tl.tensor, v: tl.tensor, peak: tl.tensor, total: tl.tensor, summed: tl.tensor
) -> tl.tensor:
    """The running softmax of each query (arXiv:1805.02867) with one more tile of keys.

    `scores` are logarithms to base 2; every query's first tile has a key that it may see.
    """
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    weights = tl.exp2(scores - new_peak[:, None])
    shrink = tl.exp2(peak - new_peak)
    total = total * shrink + tl.sum(weights, axis=1)
    summed = tl.dot(weights.to(v.dtype), v, summed * shrink[:, None], input_precision="ieee")
    return new_peak, total, summed


@kernel()
def is_last_to_arrive(counter_ptr: tl.tensor, num_expected: tl.tensor) -> tl.tensor:
    """Whether the other programs' writes are here; the last one clears the counter."""
    # every thread's writes come before the count, which releases them to other multiprocessors
    tl.debug_barrier()
    num_before = tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu")
    is_last = num_before == num_expected - 1
    tl.store(counter_ptr, 0, mask=is_last)
    tl.debug_barrier()
    return is_last


@kernel()
def store_combined(
    out_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    peaks_ptr: tl.tensor,
    num_active: tl.tensor,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    padded_width: tl.constexpr,
    splits_at_once: tl.constexpr,
) -> None:
    """The weighted mean of a row's splits; the group's G * D values as one line.

    Splits are read several at once: one after the other, each would wait for memory. Reads go past
    the first-level cache, which may hold what lay there before.
    """
    value = tl.arange(0, padded_width)
    is_value = value < group * head_dim
    peak = tl.full([padded_width], _BELOW_ALL, tl.float32)
    total = tl.zeros([padded_width], tl.float32)
    summed = tl.zeros([padded_width], tl.float32)
    for first in range(0, num_active, splits_at_once):
        split = first + tl.arange(0, splits_at_once)
        is_read = (split < num_active)[:, None] & is_value[None, :]
        at_peak = peaks_ptr + split[:, None] * (2 * group) + (value // head_dim)[None, :]
        at_sum = sums_ptr + split[:, None] * (group * head_dim) + value[None, :]
        sums = tl.load(at_sum, mask=is_read, other=0.0, cache_modifier=".cg")
        peaks = tl.load(at_peak, mask=is_read, other=_BELOW_ALL, cache_modifier=".cg")
        totals = tl.load(at_peak + group, mask=is_read, other=0.0, cache_modifier=".cg")
        new_peak = tl.maximum(peak, tl.max(peaks, axis=0))
        weights = tl.exp2(peaks - new_peak[None, :])
        shrink = tl.exp2(peak - new_peak)
        total = total * shrink + tl.sum(totals * weights, axis=0)
        summed = summed * shrink + tl.sum(sums * weights, axis=0)
        peak = new_peak
    tl.store(out_ptr + value, summed / tl.where(is_value, total, 1.0), mask=is_value)
