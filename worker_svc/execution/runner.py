"""Runs steps on one rank: batch, forward, sampling, and the last token of every slot.

Knows no message, no request and no epoch. All ranks run the same steps in the same order.
"""

import numpy as np
import torch

from worker_svc.batch_step import BatchStep, Int32s, SampledRows
from worker_svc.execution.builder import BatchLimits, build_batch, check_step
from worker_svc.execution.kv_cache import KVCache
from worker_svc.execution.logit_edits import SlotHistories, edit_logits
from worker_svc.execution.sampler import Choice, Sampler
from worker_svc.execution.sampling_plan import plan_sampling
from worker_svc.execution.step_telling import StepTelling
from worker_svc.models.decoder import Decoder
from worker_svc.slot_rules import Pooling


class ModelRunner:
    """A loaded model, its cache and its sampler, driven step by step."""

    def __init__(self, *, model: Decoder, cache: KVCache, sampler: Sampler, num_slots: int) -> None:
        """Slots are 0..num_slots-1."""
        self._model = model
        self._cache = cache
        self._sampler = sampler
        self._histories = SlotHistories()
        self._telling = StepTelling(model, group=sampler.group)
        self._device = cache.layers[0].keys.device
        self._last_tokens = torch.zeros(num_slots, dtype=torch.int64, device=self._device)
        self._limits = BatchLimits(
            num_slots=num_slots,
            num_blocks=cache.layout.num_blocks,
            block_size=cache.layout.block_size,
            num_positions=model.num_positions,
            vocab_size=model.spec.vocab_size,
        )

    @torch.inference_mode()
    def execute(self, step: BatchStep) -> SampledRows:
        """Compute a step: keys and values go into the cache, sampled tokens become last tokens.

        A step without rows, or without rows that sample, is legal. Raises `InvalidStepError`,
        having changed nothing, when a column would reach outside the cache, the positions or the
        slots.
        """
        check_step(step, self._limits)
        if step.slots.shape[0] == 0:
            return SampledRows(tokens=np.zeros(0, np.int32), failed=np.zeros(0, np.bool_))
        return self._run(step)

    def _run(self, step: BatchStep) -> SampledRows:
        batch = build_batch(step, last_tokens=self._last_tokens, block_size=self._limits.block_size)
        hidden = self._model.forward(batch, self._cache.layers)
        raw = None
        tokens, failed = np.zeros(0, np.int32), np.zeros(0, np.bool_)
        if batch.num_sampling_rows:
            logits = self._model.logits(hidden, batch)
            raw = self._telling.raw_rows(logits, step)
            choice = self._choose(logits, step)
            # the one copy to the host
            tokens = choice.tokens.to("cpu", torch.int32).numpy()
            failed = choice.failed.cpu().numpy()
            self._note(step, tokens)
        records = self._telling.tell(step, hidden, raw=raw, tokens=tokens, failed=failed)
        return SampledRows(tokens=tokens, failed=failed, records=records)

    def _choose(self, logits: torch.Tensor, step: BatchStep) -> Choice:
        part = self._sampler.part
        if step.rules:
            logits = logits.float()
            edit_logits(logits, step, self._histories, first_id=part.first_id)
        plan = plan_sampling(step, part, device=self._device)
        choice = self._sampler.sample(logits, plan)
        choice.tokens.masked_fill_(_pooled_rows(step), 0)
        slots = torch.from_numpy(step.slots[step.samples].astype(np.int64)).to(self._device)
        self._last_tokens.index_copy_(0, slots, choice.tokens)
        return choice

    def _note(self, step: BatchStep, tokens: Int32s) -> None:
        """Keeps the histories that rules look at."""
        places = np.cumsum(step.samples) - 1
        for row, rules in step.rules.items():
            if step.samples[row]:
                self._histories.note(int(step.slots[row]), rules, int(tokens[places[row]]))


def _pooled_rows(step: BatchStep) -> torch.Tensor:
    """Bool [S]: rows that give a vector."""
    is_pooled = np.zeros(step.slots.shape[0], np.bool_)
    for row, rules in step.rules.items():
        is_pooled[row] = rules.pooling is not Pooling.NONE
    return torch.from_numpy(is_pooled[step.samples])
