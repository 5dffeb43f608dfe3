"""Logits to tokens: the argmax of logits + temperature * keyed noise. Knows no slot and no request.

For a temperature T above 0, argmax(logits / T + noise) and argmax(logits + T * noise) are the
same choice (Gumbel-max, arXiv:1611.01144); the second needs no division, so greedy rows are
simply T = 0. Ties go to the lowest id. A row with a logit that is no number, or with no id left,
fails alone.

Legend: S rows that sample, n of them chosen together, P vocabulary rows of this rank, V all ids.
"""

from dataclasses import dataclass

import torch

from worker_svc.execution.filters import kept_ids
from worker_svc.execution.noise import gumbel_noise
from worker_svc.execution.sampling_plan import FilteredRows, NoisyRows, SamplingPlan, VocabularyPart
from worker_svc.parallel.group import ParallelGroup


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The chosen tokens, on the device and equal on all ranks."""

    tokens: torch.Tensor  # int64 [S], 0 where failed
    failed: torch.Tensor  # bool [S]


class Sampler:
    """Each rank chooses among its own ids; whole rows meet only where a filter needs them."""

    def __init__(self, *, part: VocabularyPart, group: ParallelGroup) -> None:
        self.part = part
        self.group = group

    def sample(self, logits: torch.Tensor, plan: SamplingPlan) -> Choice:
        """[S, P] of any float type -> the choice. Overwrites float32 logits."""
        logits = logits.float()
        self._ban(logits, plan)
        values = logits.new_empty(plan.num_rows)
        tokens = torch.empty(plan.num_rows, dtype=torch.int64, device=logits.device)
        # filtered rows first: the plain ones may add their noise in place
        if plan.filtered is not None:
            _put(self._choose_filtered(logits, plan.filtered), plan.filtered.noisy, values, tokens)
        if plan.plain is not None:
            _put(self._choose_plain(logits, plan.plain), plan.plain, values, tokens)
        failed = ~values.isfinite()
        return Choice(tokens=tokens.masked_fill_(failed, 0), failed=failed)

    def _ban(self, logits: torch.Tensor, plan: SamplingPlan) -> None:
        num_known = max(0, self.part.num_tokenizer_ids - self.part.first_id)
        logits[:, num_known:] = -torch.inf
        if plan.banned is not None:
            plan.banned.apply(logits)
        if plan.allowed is not None:
            plan.allowed.apply(logits, first_id=self.part.first_id)

    def _choose_plain(
        self, logits: torch.Tensor, rows: NoisyRows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Values and ids [n], the best over all ranks."""
        values, ids = _best(_picked(logits, rows), rows, first_id=self.part.first_id)
        if self.group.size == 1:
            return values, ids
        # float64 holds every id exactly; a NaN counts as the largest and so fails the row
        pairs = self.group.all_gather(torch.stack((values.double(), ids.double())))
        winner = pairs[:, 0].argmax(dim=0, keepdim=True)  # [1, n]: the lowest rank of equal ones
        best = pairs.gather(0, winner.unsqueeze(0).expand(1, 2, -1)).squeeze(0)
        return best[0].float(), best[1].long()

    def _choose_filtered(
        self, logits: torch.Tensor, filtered: FilteredRows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Values and ids [n], worked out alike on every rank."""
        rows = filtered.noisy
        parts = self.group.all_gather(_picked(logits, rows))  # [ranks, n, P]
        whole = parts.transpose(0, 1).flatten(1)[:, : self.part.num_tokenizer_ids].contiguous()
        kept = kept_ids(whole, rows.temperature, filtered.filters)
        return _best(whole.masked_fill(~kept, -torch.inf), rows, first_id=0)


def _picked(logits: torch.Tensor, rows: NoisyRows) -> torch.Tensor:
    return logits if rows.rows is None else logits.index_select(0, rows.rows)


def _best(
    logits: torch.Tensor, rows: NoisyRows, *, first_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest value of each row and its id; adds the noise in place."""
    if rows.keys is not None:
        last_id = first_id + logits.shape[1]
        ids = torch.arange(first_id, last_id, dtype=torch.int32, device=logits.device)
        logits.addcmul_(gumbel_noise(rows.keys, ids), rows.temperature)
    best = logits.argmax(dim=1, keepdim=True)
    return logits.gather(1, best).squeeze(1), best.squeeze(1) + first_id


def _put(
    choice: tuple[torch.Tensor, torch.Tensor],
    rows: NoisyRows,
    values: torch.Tensor,
    tokens: torch.Tensor,
) -> None:
    if rows.rows is None:
        values.copy_(choice[0])
        tokens.copy_(choice[1])
    else:
        values.index_copy_(0, rows.rows, choice[0])
        tokens.index_copy_(0, rows.rows, choice[1])
