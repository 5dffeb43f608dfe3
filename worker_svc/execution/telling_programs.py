"""The device function that tells how likely a row's token was, its rank, and the likeliest ids.

A program takes one whole row and walks over it a few times, as the filters do: the value from which
on there are so many ids is found by its bits.
"""

import triton.language as tl

from worker_svc.execution.filter_programs import highest_reaching, keys_of, load_tile
from worker_svc.kernels.jit import kernel

NUM_FACTS = 3
"""Words before the top ids: the token's logit, the row's logsumexp, the rank."""


@kernel(
    varying=("most_top", "num_words", "most_ids", "row_stride"),
    unaligned=("tokens_ptr", "num_tops_ptr", "ids_ptr", "out_ptr", "logits_ptr"),
)
def tell_row(
    logits_ptr: tl.tensor,
    tokens_ptr: tl.tensor,
    num_tops_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    out_ptr: tl.tensor,
    row_stride: tl.tensor,
    most_top: tl.tensor,
    most_ids: tl.tensor,
    num_words: tl.tensor,
    num_ids: tl.constexpr,
    row_length: tl.constexpr,
    key_bits: tl.constexpr,
    most_further: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Program (row): facts, then top ids, their logits, and the logits of further ids.

    `ids` int32 [rows, most_ids], padded with -1; `out` int32 [rows, num_words], zeros.
    """
    row = tl.program_id(0)
    line = logits_ptr + row.to(tl.int64) * row_stride
    out = out_ptr + row.to(tl.int64) * num_words
    token = tl.load(tokens_ptr + row)
    own = tl.load(line + token).to(tl.float32)
    best = tl.full([tile], float("-inf"), tl.float32)
    above = tl.zeros([tile], tl.int32)
    for first in range(0, num_ids, tile):
        x = load_tile(line, first, num_ids, row_length, tile)
        best = tl.maximum(best, x)
        above += (x > own).to(tl.int32)
    peak = tl.max(best, axis=0)
    total = tl.zeros([tile], tl.float32)
    for first in range(0, num_ids, tile):
        total += tl.exp(load_tile(line, first, num_ids, row_length, tile) - peak)
    tl.store(out, own.to(tl.int32, bitcast=True))
    logsumexp = peak + tl.log(tl.sum(total, axis=0))
    tl.store(out + 1, logsumexp.to(tl.int32, bitcast=True))
    tl.store(out + 2, tl.sum(above, axis=0) + 1)
    further = tl.arange(0, most_further)
    has_further = further < most_ids
    wanted = tl.load(ids_ptr + row * most_ids + further, mask=has_further, other=-1)
    values = tl.load(line + wanted, mask=wanted >= 0, other=0.0).to(tl.float32)
    places = out + 3 + 2 * most_top + further
    tl.store(places, values.to(tl.int32, bitcast=True), mask=has_further & (wanted >= 0))
    num_top = tl.load(num_tops_ptr + row)
    if num_top > 0:
        lowest = highest_reaching(
            line,
            num_top.to(tl.float32),
            tl.full([], 0, tl.uint32),
            peak,
            1.0,
            True,
            num_ids,
            row_length,
            key_bits,
            tile,
        )
        _store_top(line, lowest, out, num_top, most_top, num_ids, row_length, key_bits, tile)


@kernel()
def _store_top(
    line: tl.tensor,
    lowest: tl.tensor,
    out: tl.tensor,
    num_top: tl.tensor,
    most_top: tl.tensor,
    num_ids: tl.constexpr,
    row_length: tl.constexpr,
    key_bits: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Ids above the key `lowest`, then the first ones at it, until there are `num_top`."""
    counted = tl.zeros([tile], tl.int32)
    for first in range(0, num_ids, tile):
        token = first + tl.arange(0, tile)
        key = keys_of(load_tile(line, first, num_ids, row_length, tile), key_bits)
        counted += ((key > lowest) & (token < num_ids)).to(tl.int32)
    num_above = tl.sum(counted, axis=0)
    above_before = tl.full([], 0, tl.int32)
    equal_before = tl.full([], 0, tl.int32)
    for first in range(0, num_ids, tile):
        token = first + tl.arange(0, tile)
        x = load_tile(line, first, num_ids, row_length, tile)
        key = keys_of(x, key_bits)
        is_above = ((key > lowest) & (token < num_ids)).to(tl.int32)
        is_equal = ((key == lowest) & (token < num_ids)).to(tl.int32)
        place_above = above_before + tl.cumsum(is_above, axis=0) - 1
        place_equal = num_above + equal_before + tl.cumsum(is_equal, axis=0) - 1
        place = tl.where(is_above > 0, place_above, place_equal)
        is_top = ((is_above > 0) | (is_equal > 0)) & (place < num_top)
        tl.store(out + 3 + place, token, mask=is_top)
        tl.store(out + 3 + most_top + place, x.to(tl.int32, bitcast=True), mask=is_top)
        above_before += tl.sum(is_above, axis=0)
        equal_before += tl.sum(is_equal, axis=0)
