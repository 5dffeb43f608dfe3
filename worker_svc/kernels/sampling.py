"""Logits to tokens in one read: the argmax of logits + temperature * keyed noise.

Knows rows, no request. The choice is that of worker_svc/execution/sampler.py for rows without
filters.

Legend: S rows, P vocabulary rows of this rank, C chunks of the vocabulary, W places for stop ids,
M rows of grammar masks.

Two launches. First, programs (row, chunk): a program walks its chunk in tiles and keeps, in every
lane, the best value so far and its id; lanes are compared once, at the end. One row has to fill
the device and 256 rows must not drown it in programs, so chunks grow with S: about four programs
a multiprocessor, at least a tile each. Their number is an argument, not a constant: one compiled
variant serves all buckets. Then, programs (row): the best of C values, the token, the
row's failure and the slot's last token.

Sharded logits: each rank reduces its own ids to one (value, id) a row, `shard_best`; gathered over
ranks, these are chunks again, and `finish` takes them by their strides.

A value that is no number becomes +inf, and +inf fails the row, so comparing needs no special case;
so does -inf, a row without any id left. Greedy rows have temperature 0 and skip the noise, a
branch for the whole program.
"""

from dataclasses import dataclass

import torch

from worker_svc.kernels.sampling_programs import best_of_chunk, best_of_row
from worker_svc.kernels.support import num_multiprocessors

_TILE = 1024
_PROGRAMS_PER_MULTIPROCESSOR = 4
_MOST_CHUNKS = 256


@dataclass(frozen=True, slots=True, eq=False)
class RowSampling:
    """How each row chooses; lies on the device, so that a graph may read what a step copied in."""

    temperature: torch.Tensor  # float32 [S], 0 for greedy rows
    seeds: torch.Tensor  # int64 [S], the bits of an unsigned one
    positions: torch.Tensor  # int32 [S] of the token to choose
    min_position: torch.Tensor  # int32 [S] first position where a stop id may be chosen
    stop_ids: torch.Tensor  # int32 [S, W], padded with a negative id
    mask_rows: torch.Tensor | None = None  # int32 [S] the row's mask; negative: none
    mask_words: torch.Tensor | None = None  # int32 [M, words]: bit i of word j allows id 32j + i


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The best of every chunk of every row; [S, C], of any strides."""

    values: torch.Tensor  # float32
    ids: torch.Tensor  # int32


@dataclass(frozen=True, slots=True, eq=False)
class ChosenTokens:
    """Where a step's choice goes. Rows with a negative slot (padding) write no last token."""

    tokens: torch.Tensor  # [S] integers; 0 where failed
    failed: torch.Tensor  # [S] integers or bool
    slots: torch.Tensor  # [S]
    last_tokens: torch.Tensor  # [slots]


def _tiles_per_chunk(num_rows: int, num_tiles: int, *, device: torch.device) -> int:
    """As many as leave enough programs to fill the device."""
    programs = _PROGRAMS_PER_MULTIPROCESSOR * num_multiprocessors(device)
    chunks = max(1, min(programs // num_rows, num_tiles, _MOST_CHUNKS))
    return -(-num_tiles // chunks)


def best_of_chunks(
    logits: torch.Tensor, rows: RowSampling, *, first_id: int, num_tokenizer_ids: int
) -> Candidates:
    """[S, P] -> [S, C]. Logits are those of ids `first_id`.. and are not changed.

    Ids from `num_tokenizer_ids` on are never chosen.
    """
    num_rows, num_ids = logits.shape
    assert logits.stride(1) == 1
    num_tiles = -(-num_ids // _TILE)
    tiles_per_chunk = _tiles_per_chunk(max(num_rows, 1), num_tiles, device=logits.device)
    num_chunks = -(-num_tiles // tiles_per_chunk)
    candidates = Candidates(
        values=logits.new_empty(num_rows, num_chunks, dtype=torch.float32),
        ids=logits.new_empty(num_rows, num_chunks, dtype=torch.int32),
    )
    if num_rows == 0:
        return candidates
    has_masks = rows.mask_rows is not None and rows.mask_words is not None
    best_of_chunk[(num_rows, num_chunks)](
        logits,
        candidates.values,
        candidates.ids,
        rows.temperature,
        rows.seeds,
        rows.positions,
        rows.min_position,
        rows.stop_ids,
        rows.mask_rows if has_masks else rows.positions,
        rows.mask_words if has_masks else rows.positions,
        logits.stride(0),
        rows.stop_ids.shape[1],
        num_chunks,
        tiles_per_chunk,
        num_mask_words=rows.mask_words.shape[1] if rows.mask_words is not None else 0,
        first_id=first_id,
        num_ids=num_ids,
        num_known=min(num_ids, max(0, num_tokenizer_ids - first_id)),
        tile=_TILE,
    )
    return candidates


def shard_best(candidates: Candidates) -> torch.Tensor:
    """int32 [2, S]: the bits of each row's best value, and its id; for gathering over ranks."""
    num_rows = candidates.values.shape[0]
    best = candidates.ids.new_empty(2, num_rows)
    if num_rows:
        _launch_finish(candidates, best[0].view(torch.float32), best[1], None)
    return best


def gathered(parts: torch.Tensor) -> Candidates:
    """What `shard_best` gave on each rank, [ranks, 2, S], as chunks in rank order."""
    return Candidates(values=parts[:, 0].view(torch.float32).t(), ids=parts[:, 1].t())


def finish(candidates: Candidates, chosen: ChosenTokens) -> None:
    """Choose each row's token. The lowest id wins among equal values."""
    if candidates.values.shape[0]:
        _launch_finish(candidates, chosen.failed, chosen.tokens, chosen)


def _launch_finish(
    candidates: Candidates,
    first_out: torch.Tensor,
    second_out: torch.Tensor,
    chosen: ChosenTokens | None,
) -> None:
    num_rows, num_chunks = candidates.values.shape
    values, ids = candidates.values, candidates.ids
    assert values.stride() == ids.stride()
    assert num_chunks <= _MOST_CHUNKS
    best_of_row[(num_rows,)](
        values,
        ids,
        first_out.view(torch.uint8) if first_out.dtype == torch.bool else first_out,
        second_out,
        ids if chosen is None else chosen.slots,
        ids if chosen is None else chosen.last_tokens,
        values.stride(0),
        values.stride(1),
        num_chunks,
        is_last=chosen is not None,
        most_chunks=_MOST_CHUNKS,
    )
