"""What a CPU rank tells of a step's tokens beside their ids: records, prompts' records, vectors.

Every rank does the same, for whole rows of logits are gathered; rank 0's words are sent.

Legend: N tokens of the step, H hidden size, S rows that sample, P vocabulary rows of this rank.
"""

import numpy as np
import torch

from worker_svc.batch_step import NO_RECORDS, BatchStep, Booleans, Int32s, StepRecords
from worker_svc.execution.builder import first_indexes
from worker_svc.execution.token_records import RecordWish, records_of
from worker_svc.models.decoder import Decoder
from worker_svc.parallel.group import ParallelGroup
from worker_svc.slot_rules import Pooling, SlotRules

# so many rows of logits at once
_MOST_ROWS = 128


class StepTelling:
    """Reads hidden states and logits; keeps the sums of prompts that become a mean."""

    def __init__(self, model: Decoder, *, group: ParallelGroup) -> None:
        self._model = model
        self._group = group
        self._sums: dict[int, tuple[SlotRules, torch.Tensor]] = {}

    def raw_rows(self, logits: torch.Tensor, step: BatchStep) -> torch.Tensor | None:
        """Copies of the rows of [S, P] that want a record, before anything changes them."""
        rows = _recorded_rows(step)
        if not rows:
            return None
        places = (np.cumsum(step.samples) - 1)[rows]
        return logits.index_select(0, torch.from_numpy(places))

    def tell(
        self,
        step: BatchStep,
        hidden: torch.Tensor,
        *,
        raw: torch.Tensor | None,
        tokens: Int32s,
        failed: Booleans,
    ) -> StepRecords:
        """The step's records. [N, H]; `raw` from `raw_rows`; the choice [S]."""
        if not step.rules:
            return NO_RECORDS
        return StepRecords(
            token_records=b"".join(self._token_records(step, raw, tokens, failed)),
            prompt_records=b"".join(self._prompt_records(step, hidden)),
            pooled=b"".join(self._pooled(step, hidden, failed)),
        )

    def _token_records(
        self, step: BatchStep, raw: torch.Tensor | None, tokens: Int32s, failed: Booleans
    ) -> list[bytes]:
        if raw is None:
            return []
        rows = _recorded_rows(step)
        places = (np.cumsum(step.samples) - 1)[rows].tolist()
        wishes = [
            RecordWish(int(tokens[place]), step.rules[row].num_top, step.rules[row].logprob_ids)
            for row, place in zip(rows, places, strict=True)
        ]
        records = records_of(self._whole(raw), wishes)
        return [one for one, place in zip(records, places, strict=True) if not failed[place]]

    def _prompt_records(self, step: BatchStep, hidden: torch.Tensor) -> list[bytes]:
        indexes, wishes = [], []
        firsts = first_indexes(step)
        for row, rules in sorted(step.rules.items()):
            start = int(step.start_positions[row])
            for position in rules.prompt_positions(start, start + int(step.num_tokens[row])):
                # a token's record is made of the logits after the one before
                indexes.append(int(firsts[row]) + position - 1 - start)
                wishes.append(RecordWish(int(rules.history[position]), rules.num_prompt_top))
        records = []
        for first in range(0, len(indexes), _MOST_ROWS):
            part = slice(first, first + _MOST_ROWS)
            logits = self._model.logits_at(hidden, torch.tensor(indexes[part]))
            records += records_of(self._whole(logits), wishes[part])
        return records

    def _pooled(self, step: BatchStep, hidden: torch.Tensor, failed: Booleans) -> list[bytes]:
        vectors = []
        firsts, places = first_indexes(step), np.cumsum(step.samples) - 1
        for row, rules in sorted(step.rules.items()):
            if rules.pooling is Pooling.NONE:
                continue
            first, count = int(firsts[row]), int(step.num_tokens[row])
            vector = hidden[first + count - 1].float()
            if rules.pooling is Pooling.MEAN:
                total = self._sum(int(step.slots[row]), rules, hidden[first : first + count])
                vector = total / rules.num_prompt_tokens
            if step.samples[row] and not failed[places[row]]:
                vectors.append(vector.numpy().tobytes())
        return vectors

    def _sum(self, slot: int, rules: SlotRules, hidden: torch.Tensor) -> torch.Tensor:
        """The sum over all of the slot's hidden states so far."""
        known = self._sums.get(slot)
        total = hidden.float().sum(dim=0)
        if known is not None and known[0] is rules:
            total += known[1]
        self._sums[slot] = rules, total
        return total

    def _whole(self, logits: torch.Tensor) -> torch.Tensor:
        """[n, P] of this rank -> [n, V] of all."""
        parts = self._group.all_gather(logits.float())
        return parts.transpose(0, 1).flatten(1)[:, : self._model.spec.vocab_size]


def _recorded_rows(step: BatchStep) -> list[int]:
    return [row for row, rules in sorted(step.rules.items()) if _is_recorded(step, row, rules)]


def _is_recorded(step: BatchStep, row: int, rules: SlotRules) -> bool:
    return rules.has_logprobs and rules.pooling is Pooling.NONE and bool(step.samples[row])
