"""The two device functions of sampling.py; its head says why there are two."""

import triton.language as tl

from worker_svc.kernels.gumbel import gumbel_noise, noise_keys
from worker_svc.kernels.jit import kernel


@kernel(
    varying=("num_stop_ids", "num_chunks", "tiles_per_chunk"),
    unaligned=(
        "temperature_ptr",
        "seeds_ptr",
        "positions_ptr",
        "min_position_ptr",
        "stop_ids_ptr",
        "mask_rows_ptr",
        "mask_words_ptr",
    ),
)
def best_of_chunk(
    logits_ptr: tl.tensor,
    values_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    temperature_ptr: tl.tensor,
    seeds_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    min_position_ptr: tl.tensor,
    stop_ids_ptr: tl.tensor,
    mask_rows_ptr: tl.tensor,
    mask_words_ptr: tl.tensor,
    row_stride: tl.tensor,
    num_stop_ids: tl.tensor,
    num_chunks: tl.tensor,
    tiles_per_chunk: tl.tensor,
    num_mask_words: tl.constexpr,
    first_id: tl.constexpr,
    num_ids: tl.constexpr,
    num_known: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Program (row, chunk): the best of the chunk's tiles, into values and ids [row, chunk]."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    temperature = tl.load(temperature_ptr + row)
    position = tl.load(positions_ptr + row)
    is_early = position < tl.load(min_position_ptr + row)
    first_key, second_key = noise_keys(tl.load(seeds_ptr + row), position)
    best = tl.full([tile], float("-inf"), tl.float32)
    best_local = tl.full([tile], num_known, tl.int32)
    for index in range(tiles_per_chunk):
        local = (chunk * tiles_per_chunk + index) * tile + tl.arange(0, tile)
        logits = logits_ptr + row.to(tl.int64) * row_stride + local
        # masked by the row's end, a multiple of many, so that reads stay 16 bytes wide
        value = tl.load(logits, mask=local < num_ids, other=float("-inf")).to(tl.float32)
        if temperature > 0.0:
            value += temperature * gumbel_noise(first_key, second_key, local + first_id)
        value = tl.where(value != value, float("inf"), value)  # noqa: PLR0124 only NaN differs
        value = tl.where(local < num_known, value, float("-inf"))
        if is_early:
            for stop in range(num_stop_ids):
                stop_id = tl.load(stop_ids_ptr + row * num_stop_ids + stop)
                value = tl.where(local + first_id == stop_id, float("-inf"), value)
        if num_mask_words > 0:
            mask_row = tl.load(mask_rows_ptr + row)
            if mask_row >= 0:
                word = (local + first_id) // 32
                is_word = word < num_mask_words
                words = mask_words_ptr + mask_row * num_mask_words + word
                bits = tl.load(words, mask=is_word, other=0)
                is_allowed = ((bits >> ((local + first_id) % 32)) & 1) != 0
                value = tl.where(is_allowed, value, float("-inf"))
        is_better = value > best
        best = tl.where(is_better, value, best)
        best_local = tl.where(is_better, local, best_local)
    value, local = _lowest_best(best, best_local)
    tl.store(values_ptr + row * num_chunks + chunk, value)
    tl.store(ids_ptr + row * num_chunks + chunk, local + first_id)


@kernel(
    varying=("row_stride", "chunk_stride", "num_chunks"),
    unaligned=("first_out_ptr", "second_out_ptr", "slots_ptr"),
)
def best_of_row(
    values_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    first_out_ptr: tl.tensor,
    second_out_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    last_tokens_ptr: tl.tensor,
    row_stride: tl.tensor,
    chunk_stride: tl.tensor,
    num_chunks: tl.tensor,
    is_last: tl.constexpr,
    most_chunks: tl.constexpr,
) -> None:
    """Program (row): the best of its chunks; the last call also fails rows and writes tokens."""
    row = tl.program_id(0)
    chunk = tl.arange(0, most_chunks)
    offsets = row * row_stride + chunk * chunk_stride
    values = tl.load(values_ptr + offsets, mask=chunk < num_chunks, other=float("-inf"))
    ids = tl.load(ids_ptr + offsets, mask=chunk < num_chunks, other=0x7FFFFFFF)
    value, token = _lowest_best(values, ids)
    if is_last:
        is_failed = (value == float("inf")) | (value == float("-inf"))
        token = tl.where(is_failed, 0, token)
        tl.store(first_out_ptr + row, is_failed.to(first_out_ptr.dtype.element_ty))
        tl.store(second_out_ptr + row, token.to(second_out_ptr.dtype.element_ty))
        slot = tl.load(slots_ptr + row)
        if slot >= 0:
            tl.store(last_tokens_ptr + slot, token.to(last_tokens_ptr.dtype.element_ty))
    else:
        tl.store(first_out_ptr + row, value)
        tl.store(second_out_ptr + row, token)


@kernel()
def _lowest_best(values: tl.tensor, ids: tl.tensor) -> tl.tensor:
    """The largest value and the lowest id that has it."""
    value = tl.max(values, axis=0)
    return value, tl.min(tl.where(values == value, ids, 0x7FFFFFFF), axis=0)
