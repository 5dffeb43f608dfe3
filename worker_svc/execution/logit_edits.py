"""Rules that change or forbid single logits, on the CPU: penalties, bias, allowed ids, bad words.

All are made id by id, so each rank changes those of its own part. They come before temperature and
filters, in this order:

- repetition: of ids in the prompt or the output, positive logits are divided, others multiplied;
- frequency and presence: of ids in the output, the penalty times their number, and once more;
- bias: added;
- forbidden: ids that are not allowed, and the last of a bad sequence whose other tokens came last.

Knows no request. Legend: S rows that sample, P vocabulary rows of this rank.
"""

import numpy as np
import torch

from worker_svc.batch_step import BatchStep, Int32s
from worker_svc.execution.token_bans import unpack
from worker_svc.slot_rules import SlotRules


class SlotHistories:
    """Tokens so far of the slots whose rules look at them."""

    def __init__(self) -> None:
        self._rules: dict[int, SlotRules] = {}
        self._tokens: dict[int, list[int]] = {}

    def of(self, slot: int, rules: SlotRules) -> Int32s:
        """All tokens known; begins with the start's when the slot has started anew."""
        if self._rules.get(slot) is not rules:
            self._rules[slot] = rules
            self._tokens[slot] = rules.history.tolist()
        return np.array(self._tokens[slot], np.int32)

    def note(self, slot: int, rules: SlotRules, token: int) -> None:
        """A token was sampled."""
        if rules.reads_history:
            self._tokens[slot].append(token)


def edit_logits(
    logits: torch.Tensor, step: BatchStep, histories: SlotHistories, *, first_id: int
) -> None:
    """Change [S, P] float32 in place; `first_id` is this rank's first one."""
    sampling_row = np.cumsum(step.samples) - 1
    for row, rules in step.rules.items():
        if not step.samples[row] or not (rules.has_edits or rules.allowed_words.size):
            continue
        history = histories.of(int(step.slots[row]), rules)
        edit_row(logits[int(sampling_row[row])], rules, history, first_id=first_id)


def edit_row(logits: torch.Tensor, rules: SlotRules, history: Int32s, *, first_id: int) -> None:
    """Change [P] in place, after these tokens."""
    num_ids = logits.shape[0]
    if rules.repetition_penalty != 1:
        ids = _local(np.unique(history), first_id, num_ids)
        values = logits[ids]
        penalty = rules.repetition_penalty
        logits[ids] = torch.where(values > 0, values / penalty, values * penalty)
    if rules.frequency_penalty or rules.presence_penalty:
        found, counts = np.unique(history[rules.num_prompt_tokens :], return_counts=True)
        is_ours = (found >= first_id) & (found < first_id + num_ids)
        ids = torch.from_numpy((found[is_ours] - first_id).astype(np.int64))
        counted = torch.from_numpy(counts[is_ours].astype(np.float32))
        logits[ids] -= rules.frequency_penalty * counted + rules.presence_penalty
    if rules.bias_ids.size:
        is_ours = (rules.bias_ids >= first_id) & (rules.bias_ids < first_id + num_ids)
        ids = torch.from_numpy((rules.bias_ids[is_ours] - first_id).astype(np.int64))
        logits[ids] += torch.from_numpy(rules.bias_values[is_ours].copy())
    logits[_local(forbidden_ids(rules.bad_sequences, history), first_id, num_ids)] = -torch.inf
    if rules.allowed_words.size:
        words = torch.from_numpy(rules.allowed_words).unsqueeze(0)
        is_allowed = unpack(words, first_id=first_id, num_ids=num_ids)[0]
        logits.masked_fill_(~is_allowed, -torch.inf)


def forbidden_ids(sequences: tuple[Int32s, ...], history: Int32s) -> Int32s:
    """Last tokens of the sequences whose other tokens are the history's last."""
    found = [
        int(one[-1])
        for one in sequences
        if one.size == 1
        or (one.size <= history.size + 1 and np.array_equal(history[1 - one.size :], one[:-1]))
    ]
    return np.array(found, np.int32)


def _local(ids: Int32s, first_id: int, num_ids: int) -> torch.Tensor:
    is_ours = (ids >= first_id) & (ids < first_id + num_ids)
    return torch.from_numpy((ids[is_ours] - first_id).astype(np.int64))
