"""Runs steps on one rank: batch, forward, sampling, and the last token of every slot.

Knows no message, no request and no epoch. All ranks run the same steps in the same order.
"""

import numpy as np
import torch

from worker_svc.batch_step import BatchStep, SampledRows
from worker_svc.execution.builder import BatchLimits, build_batch, check_step
from worker_svc.execution.kv_cache import KVCache
from worker_svc.execution.sampler import Choice, Sampler
from worker_svc.execution.sampling_plan import plan_sampling
from worker_svc.models.decoder import Decoder


class ModelRunner:
    """A loaded model, its cache and its sampler, driven step by step."""

    def __init__(self, *, model: Decoder, cache: KVCache, sampler: Sampler, num_slots: int) -> None:
        """Slots are 0..num_slots-1."""
        self._model = model
        self._cache = cache
        self._sampler = sampler
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
        choice = self._launch(step)
        # the one copy to the host
        return SampledRows(
            tokens=choice.tokens.to("cpu", torch.int32).numpy(), failed=choice.failed.cpu().numpy()
        )

    def _launch(self, step: BatchStep) -> Choice:
        batch = build_batch(step, last_tokens=self._last_tokens, block_size=self._limits.block_size)
        hidden = self._model.forward(batch, self._cache.layers)
        if batch.num_sampling_rows == 0:
            none = torch.zeros(0, dtype=torch.int64)
            return Choice(tokens=none, failed=none.bool())
        plan = plan_sampling(step, self._sampler.part, device=self._device)
        choice = self._sampler.sample(self._model.logits(hidden, batch), plan)
        slots = torch.from_numpy(step.slots[step.samples].astype(np.int64)).to(self._device)
        self._last_tokens.index_copy_(0, slots, choice.tokens)
        return choice
