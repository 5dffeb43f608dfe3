"""Which ids survive top-k, top-p and min-p. Knows whole rows of logits, no shard and no noise.

Filters apply in this order to softmax(logits / temperature), each to what the one before has
left, as transformers' processors do; all maths in float32 after subtracting the maximum.

- top-k keeps the k largest and every id equal to the k-th.
- top-p keeps the most likely ids until their sum reaches p, the one that crosses it included; at
  least one. Of ids equal to the last one kept, the lowest are taken first.
- min-p keeps ids at least min_p times as likely as the most likely one.

Legend: F rows with a filter, V vocabulary, C candidates (the C largest of each row, descending).
"""

from dataclasses import dataclass

import torch

_FEWEST_CANDIDATES = 1024


@dataclass(frozen=True, slots=True, eq=False)
class FilterColumns:
    """The filters of some rows. Off is: top_k = V, top_p = 1, min_p = 0."""

    top_k: torch.Tensor  # int64 [F, 1], 1..V
    top_p: torch.Tensor  # float32 [F, 1]
    log_min_p: torch.Tensor  # float32 [F, 1], -inf when off
    largest_top_k: int
    """Of the rows where it is on; 0 when it is off everywhere."""
    has_top_p: bool
    has_min_p: bool


def kept_ids(
    logits: torch.Tensor, temperature: torch.Tensor, columns: FilterColumns
) -> torch.Tensor:
    """Bool [F, V] from float32 [F, V] and [F, 1] above 0; nothing of a row with a NaN or inf."""
    largest = logits.amax(dim=1, keepdim=True)
    scaled = (logits - largest) / temperature  # [F, V], at most 0
    kept = torch.ones_like(scaled, dtype=torch.bool)
    if columns.largest_top_k or columns.has_top_p:
        kept = _most_likely(scaled, columns)
    if columns.has_min_p:
        kept &= scaled >= columns.log_min_p
    return kept & largest.isfinite()


def _most_likely(scaled: torch.Tensor, columns: FilterColumns) -> torch.Tensor:
    """Bool [F, V]: top-k, then top-p."""
    num_ids = scaled.shape[1]
    num_candidates = max(columns.largest_top_k, _FEWEST_CANDIDATES if columns.has_top_p else 0)
    candidates = scaled.topk(min(num_candidates, num_ids), dim=1).values  # [F, C]
    smallest = _smallest_of_top_k(candidates, columns, num_ids)
    kept = scaled >= smallest
    if not columns.has_top_p:
        return kept
    total = (scaled.exp() * kept).sum(dim=1, keepdim=True)
    reach = torch.where(columns.top_p < 1, columns.top_p * total, torch.inf)
    # this read of a value waits for the device: the torch filters are the CPU's
    if candidates.shape[1] < num_ids and bool(_leaves_candidates(candidates, smallest, reach)):
        candidates = scaled.sort(dim=1, descending=True).values
    return kept & _within_reach(scaled, candidates, reach)


def _smallest_of_top_k(
    candidates: torch.Tensor, columns: FilterColumns, num_ids: int
) -> torch.Tensor:
    """[F, 1]: the k-th largest value; -inf where top-k is off."""
    is_on = columns.top_k < num_ids
    last = (columns.top_k - 1).clamp(max=candidates.shape[1] - 1)
    return candidates.gather(1, last).where(is_on, -torch.inf)


def _leaves_candidates(
    candidates: torch.Tensor, smallest: torch.Tensor, reach: torch.Tensor
) -> torch.Tensor:
    """Whether some row's nucleus may go on beyond its candidates."""
    is_short = candidates.exp().sum(dim=1, keepdim=True) < reach
    return (is_short & reach.isfinite() & (candidates[:, -1:] >= smallest)).any()


def _within_reach(
    scaled: torch.Tensor, candidates: torch.Tensor, reach: torch.Tensor
) -> torch.Tensor:
    """Bool [F, V]: the largest values whose likelier ones sum to less than `reach`."""
    weights = candidates.exp()
    sum_before = weights.cumsum(dim=1) - weights
    num_kept = (sum_before < reach).sum(dim=1, keepdim=True).clamp(min=1)  # [F, 1]
    last = candidates.gather(1, num_kept - 1)
    is_limited = reach.isfinite()
    num_of_last = num_kept - (candidates > last).sum(dim=1, keepdim=True)
    is_last = scaled == last
    is_taken = is_last & (is_last.cumsum(dim=1) <= num_of_last)
    return (scaled > last) | is_taken | ~is_limited
