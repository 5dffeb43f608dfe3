"""What the device does for a step, cut into programs that can be recorded. Knows no plan.

- `decode`: rows that continue by one token, from packed columns to their next tokens.
- `forward`: any rows, up to the hidden states, and `choose`: tokens of some of those rows. Two,
  because the numbers of tokens and of choosing rows vary apart, and masks may come between.

Nothing here waits for the device or reads from it. Legend: R rows, N tokens, S rows that choose.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from worker_svc.execution.chunk_inputs import prepare_chunks
from worker_svc.execution.filter_rows import filter_rows
from worker_svc.execution.kv_cache import KVCache
from worker_svc.execution.packed_columns import SampleColumns
from worker_svc.execution.rule_device import RuleDevice
from worker_svc.execution.sampling_plan import VocabularyPart
from worker_svc.execution.step_layout import ForwardShape, sample_columns
from worker_svc.execution.step_memory import StepMemory
from worker_svc.kernels.decode_inputs import prepare_decode
from worker_svc.kernels.sampling import (
    ChosenTokens,
    RowSampling,
    best_of_chunks,
    finish,
    gathered,
    shard_best,
)
from worker_svc.models.decoder import Decoder
from worker_svc.parallel.group import ParallelGroup


@dataclass(frozen=True, slots=True)
class ChoiceShape:
    """How many rows choose, and whether any of them needs whole rows of logits."""

    num_rows: int
    has_filters: bool = False


class Programs:
    """A model, its cache and the memory of steps."""

    def __init__(
        self,
        *,
        model: Decoder,
        cache: KVCache,
        memory: StepMemory,
        part: VocabularyPart,
        group: ParallelGroup,
    ) -> None:
        self.memory = memory
        self._model = model
        self._cache = cache
        self._part = part
        self._group = group
        self.rules = RuleDevice(
            num_slots=memory.sizes.num_slots,
            hidden_size=memory.sizes.hidden_size,
            vocab_size=model.spec.vocab_size,
            part=part,
            group=group,
            device=memory.packed.device,
        )

    @torch.inference_mode()
    def decode(self, num_rows: int) -> None:
        """Rows that continue: their columns are packed, their tokens end in the results."""
        columns = self.memory.decode_columns(num_rows)
        inputs = self.memory.decode_inputs(num_rows)
        prepare_decode(
            columns,
            inputs,
            last_tokens=self.memory.last_tokens,
            tables=self.memory.tables,
            block_size=self.memory.sizes.block_size,
        )
        batch = self.memory.batch(ForwardShape(num_rows, 0, num_rows))
        hidden = self._model.forward(batch, self._cache.layers)
        rows = RowSampling(
            temperature=columns.temperature,
            seeds=columns.seeds,
            positions=inputs.cache_seqlens,
            min_position=columns.min_position,
            stop_ids=columns.stop_ids,
        )
        self._choose(self._model.logits(hidden, batch), rows, columns.slots)

    @torch.inference_mode()
    def forward(self, shape: ForwardShape) -> None:
        """Rows of any kind: their columns are packed, hidden states of all tokens are kept."""
        singles, chunks = shape.columns(self.memory.areas.forward(self.memory.packed))
        tables, block_size = self.memory.tables, self.memory.sizes.block_size
        if shape.num_singles:
            prepare_decode(
                singles,
                self.memory.decode_inputs(shape.num_singles),
                last_tokens=self.memory.last_tokens,
                tables=tables,
                block_size=block_size,
            )
        # after the decode rows, whose padding lies where the chunks' tokens go
        inputs = self.memory.chunk_inputs(shape)
        prepare_chunks(chunks, inputs, tables=tables, block_size=block_size)
        hidden = self._model.forward(self.memory.batch(shape), self._cache.layers)
        self.memory.hidden[: shape.num_tokens].copy_(hidden)

    @torch.inference_mode()
    def choose(self, shape: ChoiceShape, mask_words: torch.Tensor | None = None) -> None:
        """Tokens of the rows whose sample columns are packed, after `forward`."""
        area = self.memory.areas.samples(self.memory.packed)
        columns = sample_columns(area, shape.num_rows)
        logits = self._model.logits_at(self.memory.hidden, columns.last_indexes)
        self._choose_from(logits, shape, columns, mask_words)

    def _choose_from(
        self,
        logits: torch.Tensor,
        shape: ChoiceShape,
        columns: SampleColumns,
        mask_words: torch.Tensor | None,
    ) -> None:
        rows = RowSampling(
            temperature=columns.temperature,
            seeds=columns.seeds,
            positions=columns.positions,
            min_position=columns.min_position,
            stop_ids=columns.stop_ids,
            mask_rows=None if mask_words is None else columns.mask_rows,
            mask_words=mask_words,
        )
        if shape.has_filters:
            self._choose_filtered(logits, rows, columns)
        else:
            self._choose(logits, rows, columns.slots)

    @torch.inference_mode()
    def choose_edited(
        self,
        shape: ChoiceShape,
        mask_words: torch.Tensor | None,
        *,
        edit: Callable[[torch.Tensor], None] | None,
        is_told: bool,
    ) -> torch.Tensor:
        """As `choose`, after `edit` of float32 logits; returns the untouched ones if told."""
        area = self.memory.areas.samples(self.memory.packed)
        columns = sample_columns(area, shape.num_rows)
        raw = self._model.logits_at(self.memory.hidden, columns.last_indexes)
        logits = raw
        if edit is not None or is_told:
            # filters and edits write into their logits; float32, lest an edit be rounded away
            logits = raw.to(torch.float32, copy=True)
        if edit is not None:
            edit(logits)
        self._choose_from(logits, shape, columns, mask_words)
        return raw

    def logits_at(self, indexes: torch.Tensor) -> torch.Tensor:
        """This rank's logits after these of the step's tokens."""
        return self._model.logits_at(self.memory.hidden, indexes)

    def all_allowed(self) -> torch.Tensor:
        """One mask that allows every id."""
        num_words = -(-self._model.spec.vocab_size // 32)
        device = self.memory.packed.device
        return torch.full((1, num_words), -1, dtype=torch.int32, device=device)

    def _choose(self, logits: torch.Tensor, rows: RowSampling, slots: torch.Tensor) -> None:
        candidates = best_of_chunks(
            logits,
            rows,
            first_id=self._part.first_id,
            num_tokenizer_ids=self._part.num_tokenizer_ids,
        )
        if self._group.size > 1:
            candidates = gathered(self._group.all_gather(shard_best(candidates)))
        finish(candidates, self._chosen(slots))

    def _choose_filtered(
        self, logits: torch.Tensor, rows: RowSampling, columns: SampleColumns
    ) -> None:
        """Every rank sees whole rows and works out the same."""
        num_ids = self._part.num_tokenizer_ids
        parts = self._group.all_gather(logits)  # [ranks, S, P]
        whole = parts.transpose(0, 1).flatten(1)
        filter_rows(whole, rows, columns, num_tokenizer_ids=num_ids)
        candidates = best_of_chunks(whole, rows, first_id=0, num_tokenizer_ids=num_ids)
        finish(candidates, self._chosen(columns.slots))

    def _chosen(self, slots: torch.Tensor) -> ChosenTokens:
        num_rows = slots.shape[0]
        return ChosenTokens(
            tokens=self.memory.results[:num_rows],
            failed=self.memory.results[num_rows : 2 * num_rows],
            slots=slots,
            last_tokens=self.memory.last_tokens,
        )
