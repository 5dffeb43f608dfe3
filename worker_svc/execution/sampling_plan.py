"""What the sampler needs to know of a step, worked out from its columns. Knows no logits.

Rows are numbered among the rows that sample. Positions, seeds and filters are known to the host,
so every choice of path is made here and none waits for the device.

Legend: S rows that sample, P vocabulary rows of this rank.
"""

from dataclasses import dataclass

import numpy as np
import torch

from worker_svc.batch_step import BatchStep, Booleans, Float32s, Int32s, SamplingColumns, UInt64s
from worker_svc.execution.filters import FilterColumns
from worker_svc.execution.noise import noise_keys
from worker_svc.execution.token_bans import AllowedIds, BannedIds

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them leaves nothing but the largest logit."""


@dataclass(frozen=True, slots=True)
class VocabularyPart:
    """The ids whose logits this rank computes, and which of all ids exist."""

    first_id: int
    num_ids: int
    """P: columns of the logits, which may reach beyond the vocabulary on the last rank."""
    num_tokenizer_ids: int
    """Ids from here on are never chosen; at most the vocabulary's size."""


@dataclass(frozen=True, slots=True, eq=False)
class NoisyRows:
    """Some sampling rows and the noise each of them adds."""

    rows: torch.Tensor | None  # int64 [n]; None: all rows, in order
    temperature: torch.Tensor  # float32 [n, 1], 0 for greedy rows
    keys: torch.Tensor | None  # int32 [n, 2]; None: all are greedy


@dataclass(frozen=True, slots=True, eq=False)
class FilteredRows:
    """Sampling rows with a filter: these need whole rows of logits."""

    noisy: NoisyRows
    filters: FilterColumns


@dataclass(frozen=True, slots=True, eq=False)
class SamplingPlan:
    """How a step chooses its tokens."""

    num_rows: int
    plain: NoisyRows | None
    filtered: FilteredRows | None
    banned: BannedIds | None
    allowed: AllowedIds | None


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """The columns of the rows that sample, [S]."""

    temperature: Float32s
    top_k: Int32s
    top_p: Float32s
    min_p: Float32s
    seed: UInt64s
    positions: Int32s


def plan_sampling(step: BatchStep, part: VocabularyPart, *, device: torch.device) -> SamplingPlan:
    """The plan of a step. A token's position is that of the row's end, where it will be stored."""
    samples = step.samples
    positions = (step.start_positions + step.num_tokens)[samples]
    columns = step.sampling
    rows = _sampling_rows(columns, samples, positions)
    has_filter = _has_filter(rows, part.num_tokenizer_ids)
    allowed = None
    if step.masks is not None and step.masks.rows.size:
        sampling_row = np.cumsum(samples, dtype=np.int32) - 1
        allowed = AllowedIds.of_masks(step.masks, sampling_row, device=device)
    return SamplingPlan(
        num_rows=positions.shape[0],
        plain=_noisy(rows, ~has_filter, device) if not has_filter.all() else None,
        filtered=_filtered(rows, has_filter, part, device) if has_filter.any() else None,
        banned=BannedIds.early_stops(
            columns.stop_ids[samples],
            positions < columns.min_position[samples],
            first_id=part.first_id,
            num_ids=part.num_ids,
            device=device,
        ),
        allowed=allowed,
    )


def _sampling_rows(columns: SamplingColumns, samples: Booleans, positions: Int32s) -> _Rows:
    temperature = columns.temperature[samples]
    return _Rows(
        temperature=np.where(temperature < GREEDY_BELOW, np.float32(0), temperature),
        top_k=columns.top_k[samples],
        top_p=columns.top_p[samples],
        min_p=columns.min_p[samples],
        seed=columns.seed[samples],
        positions=positions,
    )


def _has_filter(rows: _Rows, num_ids: int) -> Booleans:
    # a greedy row's choice survives every filter
    has_top_k = (rows.top_k > 0) & (rows.top_k < num_ids)
    return (rows.temperature > 0) & (has_top_k | (rows.top_p < 1) | (rows.min_p > 0))


def _noisy(rows: _Rows, chosen: Booleans, device: torch.device) -> NoisyRows:
    temperature = rows.temperature[chosen]
    keys = None
    if (temperature > 0).any():
        seeds = torch.from_numpy(rows.seed[chosen].view(np.int64)).to(device)
        positions = torch.from_numpy(rows.positions[chosen].astype(np.int32)).to(device)
        keys = noise_keys(seeds, positions)
    return NoisyRows(
        rows=None if chosen.all() else torch.from_numpy(chosen.nonzero()[0]).to(device),
        temperature=torch.from_numpy(temperature).unsqueeze(1).to(device),
        keys=keys,
    )


def _filtered(
    rows: _Rows, chosen: Booleans, part: VocabularyPart, device: torch.device
) -> FilteredRows:
    num_ids = part.num_tokenizer_ids
    top_k, top_p, min_p = rows.top_k[chosen], rows.top_p[chosen], rows.min_p[chosen]
    is_top_k = (top_k > 0) & (top_k < num_ids)
    with np.errstate(divide="ignore"):
        log_min_p = np.log(min_p)
    filters = FilterColumns(
        top_k=torch.from_numpy(np.where(is_top_k, top_k, num_ids)).long().unsqueeze(1).to(device),
        top_p=torch.from_numpy(top_p).unsqueeze(1).to(device),
        log_min_p=torch.from_numpy(log_min_p).unsqueeze(1).to(device),
        largest_top_k=int(top_k.max(where=is_top_k, initial=0)),
        has_top_p=bool((top_p < 1).any()),
        has_min_p=bool((min_p > 0).any()),
    )
    return FilteredRows(noisy=_noisy(rows, chosen, device), filters=filters)
