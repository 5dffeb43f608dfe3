"""The device function of filter_rows.py; its head says how it finds what to keep."""

import triton.language as tl

from worker_svc.kernels.jit import kernel


@kernel(
    varying=("num_stop_ids",),
    unaligned=(
        "temperature_ptr",
        "positions_ptr",
        "min_position_ptr",
        "stop_ids_ptr",
        "top_k_ptr",
        "top_p_ptr",
        "log_min_p_ptr",
        "mask_rows_ptr",
        "mask_words_ptr",
    ),
)
def filter_row(
    logits_ptr: tl.tensor,
    temperature_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    min_position_ptr: tl.tensor,
    stop_ids_ptr: tl.tensor,
    top_k_ptr: tl.tensor,
    top_p_ptr: tl.tensor,
    log_min_p_ptr: tl.tensor,
    mask_rows_ptr: tl.tensor,
    mask_words_ptr: tl.tensor,
    row_stride: tl.tensor,
    num_stop_ids: tl.tensor,
    num_mask_words: tl.constexpr,
    num_ids: tl.constexpr,
    row_length: tl.constexpr,
    key_bits: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Program (row): find what the row's filters keep, and write -inf over the rest."""
    row = tl.program_id(0)
    temperature = tl.load(temperature_ptr + row)
    top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    log_min_p = tl.load(log_min_p_ptr + row)
    has_top_k, has_top_p = top_k < num_ids, top_p < 1.0
    has_any = has_top_k | has_top_p | (log_min_p > float("-inf"))
    if (temperature <= 0.0) | (has_any == 0):
        return
    line = logits_ptr + row.to(tl.int64) * row_stride
    if tl.load(positions_ptr + row) < tl.load(min_position_ptr + row):
        for stop in range(num_stop_ids):
            stop_id = tl.load(stop_ids_ptr + row * num_stop_ids + stop)
            is_banned = (stop_id >= 0) & (stop_id < num_ids)
            tl.store(line + stop_id, float("-inf"), mask=is_banned)
        tl.debug_barrier()
    if num_mask_words > 0:
        mask_row = tl.load(mask_rows_ptr + row)
        if mask_row >= 0:
            _ban_masked(
                line,
                mask_words_ptr + mask_row * num_mask_words,
                num_mask_words,
                num_ids,
                tile,
            )
            tl.debug_barrier()
    peak, is_number = _peak(line, num_ids, row_length, tile)
    if is_number == 0:
        return

    lowest = tl.full([], 0, tl.uint32)
    if has_top_k:
        wanted = top_k.to(tl.float32)
        lowest = highest_reaching(
            line, wanted, lowest, peak, temperature, True, num_ids, row_length, key_bits, tile
        )
    num_of_lowest = tl.full([], num_ids, tl.int32)
    if has_top_p:
        total, _, _ = _above(line, lowest, peak, temperature, num_ids, row_length, key_bits, tile)
        # at least one id, whatever p
        reach = tl.maximum(top_p * total, 1e-20)
        lowest = highest_reaching(
            line, reach, lowest, peak, temperature, False, num_ids, row_length, key_bits, tile
        )
        _, above, weight = _above(
            line, lowest, peak, temperature, num_ids, row_length, key_bits, tile
        )
        left = tl.ceil((reach - above) / weight)
        num_of_lowest = tl.maximum(tl.minimum(left, num_ids * 1.0), 1.0).to(tl.int32)
    _keep(
        line,
        lowest,
        num_of_lowest,
        peak,
        temperature,
        log_min_p,
        num_ids,
        row_length,
        key_bits,
        tile,
    )


@kernel()
def _ban_masked(
    line: tl.tensor,
    words_ptr: tl.tensor,
    num_mask_words: tl.constexpr,
    num_ids: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    for first in range(0, num_ids, tile):
        token = first + tl.arange(0, tile)
        word = token // 32
        bits = tl.load(words_ptr + word, mask=word < num_mask_words, other=0)
        is_banned = (((bits >> (token % 32)) & 1) == 0) & (token < num_ids)
        tl.store(line + token, tl.full([tile], float("-inf"), tl.float32), mask=is_banned)


@kernel()
def _peak(
    line: tl.tensor, num_ids: tl.constexpr, row_length: tl.constexpr, tile: tl.constexpr
) -> tl.tensor:
    """The largest logit, and whether it is a finite number and all others are numbers."""
    best = tl.full([tile], float("-inf"), tl.float32)
    is_bad = tl.zeros([tile], tl.int32)
    for first in range(0, num_ids, tile):
        x = load_tile(line, first, num_ids, row_length, tile)
        is_bad = is_bad | (x != x).to(tl.int32)  # noqa: PLR0124 only NaN differs
        best = tl.maximum(best, x)
    peak = tl.max(best, axis=0)
    is_number = (tl.max(is_bad, axis=0) == 0) & (peak < float("inf")) & (peak > float("-inf"))
    return peak, is_number.to(tl.int32)


@kernel()
def load_tile(
    line: tl.tensor,
    first: tl.tensor,
    num_ids: tl.constexpr,
    row_length: tl.constexpr,
    tile: tl.constexpr,
) -> tl.tensor:
    """A tile of logits; masked by the row's end, a multiple of many, so that reads are wide."""
    token = first + tl.arange(0, tile)
    x = tl.load(line + token, mask=token < row_length, other=float("-inf")).to(tl.float32)
    return tl.where(token < num_ids, x, float("-inf"))


@kernel()
def keys_of(x: tl.tensor, key_bits: tl.constexpr) -> tl.tensor:
    """uint32 in the order of the float32 values; of bfloat16 numbers the upper half says all."""
    bits = x.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, ~bits, bits | -0x80000000).to(tl.uint32, bitcast=True)
    return key >> (32 - key_bits)


@kernel()
def _weights(
    x: tl.tensor, peak: tl.tensor, temperature: tl.tensor, counts: tl.constexpr
) -> tl.tensor:
    """How likely each is beside the likeliest; or one for each that is there."""
    return tl.where(x > float("-inf"), 1.0, 0.0) if counts else tl.exp((x - peak) / temperature)


@kernel()
def highest_reaching(
    line: tl.tensor,
    target: tl.tensor,
    lowest: tl.tensor,
    peak: tl.tensor,
    temperature: tl.tensor,
    counts: tl.constexpr,
    num_ids: tl.constexpr,
    row_length: tl.constexpr,
    key_bits: tl.constexpr,
    tile: tl.constexpr,
) -> tl.tensor:
    """The highest key from which on weights reach the target; 0 when all together do not.

    Ids below the key `lowest` do not count.
    """
    found = tl.full([], 0, tl.uint32)
    unit = tl.full([], 1, tl.uint32) << (key_bits - 2)
    for _ in range(key_bits // 2):
        one, two, three = found + unit, found + 2 * unit, found + 3 * unit
        at_one = tl.zeros([tile], tl.float32)
        at_two = tl.zeros([tile], tl.float32)
        at_three = tl.zeros([tile], tl.float32)
        for first in range(0, num_ids, tile):
            x = load_tile(line, first, num_ids, row_length, tile)
            key = keys_of(x, key_bits)
            weight = tl.where(key >= lowest, _weights(x, peak, temperature, counts), 0.0)
            at_one += tl.where(key >= one, weight, 0.0)
            at_two += tl.where(key >= two, weight, 0.0)
            at_three += tl.where(key >= three, weight, 0.0)
        reaches_one = tl.sum(at_one, axis=0) >= target
        reaches_two = tl.sum(at_two, axis=0) >= target
        reaches_three = tl.sum(at_three, axis=0) >= target
        found = tl.where(
            reaches_three, three, tl.where(reaches_two, two, tl.where(reaches_one, one, found))
        )
        unit = unit >> 2
    return tl.maximum(found, lowest)


@kernel()
def _above(
    line: tl.tensor,
    level: tl.tensor,
    peak: tl.tensor,
    temperature: tl.tensor,
    num_ids: tl.constexpr,
    row_length: tl.constexpr,
    key_bits: tl.constexpr,
    tile: tl.constexpr,
) -> tl.tensor:
    """Weights from the key `level` on, those above it, and the weight of one id at it."""
    from_level = tl.zeros([tile], tl.float32)
    above = tl.zeros([tile], tl.float32)
    at_level = tl.zeros([tile], tl.float32)
    for first in range(0, num_ids, tile):
        x = load_tile(line, first, num_ids, row_length, tile)
        key, weight = keys_of(x, key_bits), _weights(x, peak, temperature, False)
        from_level += tl.where(key >= level, weight, 0.0)
        above += tl.where(key > level, weight, 0.0)
        at_level = tl.maximum(at_level, tl.where(key == level, weight, 0.0))
    one = tl.maximum(tl.max(at_level, axis=0), 1e-30)
    return tl.sum(from_level, axis=0), tl.sum(above, axis=0), one


@kernel()
def _keep(
    line: tl.tensor,
    lowest: tl.tensor,
    num_of_lowest: tl.tensor,
    peak: tl.tensor,
    temperature: tl.tensor,
    log_min_p: tl.tensor,
    num_ids: tl.constexpr,
    row_length: tl.constexpr,
    key_bits: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Write -inf below the key `lowest`, and at it from the `num_of_lowest`-th id on."""
    num_before = tl.full([], 0, tl.int32)
    for first in range(0, num_ids, tile):
        token = first + tl.arange(0, tile)
        x = load_tile(line, first, num_ids, row_length, tile)
        key = keys_of(x, key_bits)
        is_lowest = (key == lowest).to(tl.int32)
        rank = num_before + tl.cumsum(is_lowest, axis=0) - is_lowest
        num_before += tl.sum(is_lowest, axis=0)
        is_kept = (key > lowest) | ((is_lowest > 0) & (rank < num_of_lowest))
        is_kept = is_kept & ((x - peak) / temperature >= log_min_p)
        tl.store(
            line + token,
            tl.full([tile], float("-inf"), tl.float32),
            mask=(is_kept == 0) & (token < num_ids),
        )
