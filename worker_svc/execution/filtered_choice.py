"""Filters on a device, without waiting for it: top-k, top-p and min-p as execution/filters.py says.

Every row may have its own filters; those without any have them switched off. Knows whole rows of
logits, no shard and no noise.

Legend: S rows, V ids, W places for stop ids a row, M masks.
"""

import torch

from worker_svc.execution.packed_columns import SampleColumns
from worker_svc.execution.token_bans import unpack
from worker_svc.kernels.sampling import RowSampling

_ROWS_AT_ONCE = 32
"""Sorting needs a multiple of the rows' memory."""


def without_filtered(
    logits: torch.Tensor, rows: RowSampling, columns: SampleColumns
) -> torch.Tensor:
    """Float32 [S, V]: the logits [S, V], -inf where a ban or a filter takes an id out.

    A row whose largest logit is no finite number stays as it is, and fails when a token is chosen.
    """
    left = logits.float()
    _ban_early_stops(left, rows)
    if rows.mask_rows is not None and rows.mask_words is not None:
        allowed = unpack(rows.mask_words, first_id=0, num_ids=left.shape[1])  # [M, V]
        is_free = (rows.mask_rows < 0).unsqueeze(1)
        left.masked_fill_(~(allowed[rows.mask_rows.clamp(min=0).long()] | is_free), -torch.inf)
    for first in range(0, left.shape[0], _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        _filter(
            left[part],
            rows.temperature[part].unsqueeze(1),
            top_k=columns.top_k[part].long().unsqueeze(1),
            top_p=columns.top_p[part].unsqueeze(1),
            log_min_p=columns.log_min_p[part].unsqueeze(1),
        )
    return left


def _ban_early_stops(logits: torch.Tensor, rows: RowSampling) -> None:
    is_early = (rows.positions < rows.min_position).unsqueeze(1)
    is_banned = is_early & (rows.stop_ids >= 0) & (rows.stop_ids < logits.shape[1])
    # a place that bans nothing takes the smaller of id 0's logit and infinity
    ids = rows.stop_ids.where(is_banned, 0).long()
    limits = torch.where(is_banned, -torch.inf, torch.inf)
    logits.scatter_reduce_(1, ids, limits, "amin")


def _filter(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    *,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    log_min_p: torch.Tensor,
) -> None:
    """Write -inf into [S, V]; the columns are [S, 1]."""
    largest = logits.amax(dim=1, keepdim=True)
    scaled = (logits - largest) / temperature.where(temperature > 0, 1.0)
    ranked, order = scaled.sort(dim=1, descending=True, stable=True)
    smallest = ranked.gather(1, (top_k - 1).clamp(0, logits.shape[1] - 1))
    is_kept = ranked >= smallest
    weights = ranked.exp() * is_kept
    sum_before = weights.cumsum(dim=1) - weights
    reach = top_p * weights.sum(dim=1, keepdim=True)
    is_kept &= (sum_before < reach) | (top_p >= 1)
    is_kept &= ranked >= log_min_p
    is_kept[:, 0] = True  # at least one, whatever p
    is_kept |= ~largest.isfinite()
    logits.masked_fill_(~torch.empty_like(is_kept).scatter_(1, order, is_kept), -torch.inf)
