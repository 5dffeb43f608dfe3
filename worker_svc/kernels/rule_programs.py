"""Device functions of rules: penalties, shifts, forbidden ends of sequences, and what came so far.

What came so far lies on the device, by slot: for each id a count, with a bit for the prompt, and
the last tokens by position modulo their number. A sampled token is noted right behind its choice,
so the next step, launched already, finds it.
"""

import triton.language as tl

from worker_svc.kernels.jit import kernel

IN_PROMPT = 1 << 30
"""Beside an id's count: the prompt has it."""
_IN_PROMPT = tl.constexpr(IN_PROMPT)


@kernel(
    varying=("row_stride", "num_ids"),
    unaligned=("rows_ptr", "slots_ptr", "penalties_ptr", "counts_ptr", "logits_ptr"),
)
def penalize(
    logits_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    penalties_ptr: tl.tensor,
    counts_ptr: tl.tensor,
    row_stride: tl.tensor,
    num_ids: tl.tensor,
    tile: tl.constexpr,
) -> None:
    """Program (affected row, tile): penalties of a tile of float32 logits."""
    index = tl.program_id(0)
    local = tl.program_id(1) * tile + tl.arange(0, tile)
    is_id = local < num_ids
    row, slot = tl.load(rows_ptr + index), tl.load(slots_ptr + index)
    repetition = tl.load(penalties_ptr + 3 * index)
    frequency = tl.load(penalties_ptr + 3 * index + 1)
    presence = tl.load(penalties_ptr + 3 * index + 2)
    seen = tl.load(counts_ptr + slot.to(tl.int64) * num_ids + local, mask=is_id, other=0)
    places = logits_ptr + row.to(tl.int64) * row_stride + local
    x = tl.load(places, mask=is_id, other=0.0)
    repeated = tl.where(x > 0.0, x / repetition, x * repetition)
    x = tl.where(seen != 0, repeated, x)
    count = seen & (_IN_PROMPT - 1)
    counted = frequency * count.to(tl.float32) + presence
    x = tl.where(count > 0, x - counted, x)
    tl.store(places, x, mask=is_id & (seen != 0))


@kernel(
    varying=("row_stride", "first_id", "num_ids", "count"),
    unaligned=("rows_ptr", "ids_ptr", "shifts_ptr", "logits_ptr"),
)
def shift(
    logits_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    shifts_ptr: tl.tensor,
    row_stride: tl.tensor,
    first_id: tl.tensor,
    num_ids: tl.tensor,
    count: tl.tensor,
    tile: tl.constexpr,
) -> None:
    """Program (tile of entries): adds each entry's shift; no two are of the same place."""
    entry = tl.program_id(0) * tile + tl.arange(0, tile)
    is_entry = entry < count
    row = tl.load(rows_ptr + entry, mask=is_entry, other=0)
    local = tl.load(ids_ptr + entry, mask=is_entry, other=0) - first_id
    is_ours = is_entry & (local >= 0) & (local < num_ids)
    places = logits_ptr + row.to(tl.int64) * row_stride + local
    x = tl.load(places, mask=is_ours, other=0.0)
    by = tl.load(shifts_ptr + entry, mask=is_entry, other=0.0)
    tl.store(places, x + by, mask=is_ours)


@kernel(
    varying=("row_stride", "first_id", "num_ids"),
    unaligned=("columns_ptr", "tokens_ptr", "logits_ptr"),
)
def forbid(
    logits_ptr: tl.tensor,
    columns_ptr: tl.tensor,
    tokens_ptr: tl.tensor,
    recent_ptr: tl.tensor,
    row_stride: tl.tensor,
    first_id: tl.tensor,
    num_ids: tl.tensor,
    num_recent: tl.constexpr,
) -> None:
    """Program (sequence): forbids its last token if its others came last.

    Columns of a sequence: row, slot, position of the token to choose, first of its tokens, length.
    """
    columns = columns_ptr + 5 * tl.program_id(0)
    row, slot, position = tl.load(columns), tl.load(columns + 1), tl.load(columns + 2)
    first, length = tl.load(columns + 3), tl.load(columns + 4)
    place = tl.arange(0, num_recent)
    is_compared = place < length - 1
    wanted = tl.load(tokens_ptr + first + place, mask=is_compared, other=0)
    at = tl.maximum(position - (length - 1) + place, 0) % num_recent
    came = tl.load(recent_ptr + slot.to(tl.int64) * num_recent + at, mask=is_compared, other=0)
    num_others = tl.sum((wanted != came).to(tl.int32), axis=0)
    local = tl.load(tokens_ptr + first + length - 1) - first_id
    is_hit = (num_others == 0) & (position >= length - 1) & (local >= 0) & (local < num_ids)
    tl.store(logits_ptr + row.to(tl.int64) * row_stride + local, float("-inf"), mask=is_hit)


@kernel(
    varying=("first_id", "num_ids"),
    unaligned=("rows_ptr", "slots_ptr", "positions_ptr", "chosen_ptr", "counts_ptr"),
)
def note(
    rows_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    chosen_ptr: tl.tensor,
    counts_ptr: tl.tensor,
    recent_ptr: tl.tensor,
    first_id: tl.tensor,
    num_ids: tl.tensor,
    num_recent: tl.constexpr,
) -> None:
    """Program (row): takes its chosen token into what came so far."""
    index = tl.program_id(0)
    slot = tl.load(slots_ptr + index).to(tl.int64)
    position = tl.load(positions_ptr + index)
    token = tl.load(chosen_ptr + tl.load(rows_ptr + index))
    tl.store(recent_ptr + slot * num_recent + position % num_recent, token)
    local = token - first_id
    is_ours = (local >= 0) & (local < num_ids)
    place = counts_ptr + slot * num_ids + local
    tl.store(place, tl.load(place, mask=is_ours, other=0) + 1, mask=is_ours)
