"""Which recorded program runs a step, and recording it. Knows no plan and no packing.

Common sizes are recorded before the first step; a rare one when a step first needs it.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from worker_svc.execution.buckets import Buckets
from worker_svc.execution.graphs import Graphs
from worker_svc.execution.programs import ChoiceShape, Programs
from worker_svc.execution.rule_device import RuleDevice
from worker_svc.execution.step_layout import ForwardShape, sample_columns
from worker_svc.execution.step_memory import StepMemory
from worker_svc.execution.step_packing import StepFacts

_LOGGER = logging.getLogger(__name__)

_MOST_EAGERLY_RECORDED_ROWS = 512
_MOST_CHUNK_ROWS = 64


@dataclass(frozen=True, slots=True)
class ProgramBuckets:
    """The sizes that programs are recorded for."""

    decode: Buckets
    tokens: Buckets
    samples: Buckets


class RecordedPrograms:
    """Programs behind their graphs."""

    def __init__(self, programs: Programs, *, graphs: Graphs, buckets: ProgramBuckets) -> None:
        self._programs = programs
        self._graphs = graphs
        self._buckets = buckets

    @property
    def memory(self) -> StepMemory:
        """Where steps' inputs and results lie."""
        return self._programs.memory

    @property
    def rules(self) -> RuleDevice:
        """What the device knows of rules."""
        return self._programs.rules

    def get_ready(self) -> None:
        """Load every kernel, then record what most steps need.

        The largest come first: the others then fit into their memory.
        """
        began = time.monotonic()
        self._warm_up()
        _LOGGER.info("loaded kernels in %.1f s", time.monotonic() - began)
        if self._graphs.is_on:
            self._record_common()

    @torch.inference_mode()
    def _warm_up(self) -> None:
        """Run programs that are never recorded once, on padding."""
        shape = ForwardShape(1, 1, min(32, self.memory.sizes.most_tokens))
        self.clear_forward(shape)
        self._programs.forward(shape)
        for choice in (ChoiceShape(1), ChoiceShape(1, has_filters=True)):
            self.clear_choice(choice)
            self._programs.choose(choice)
            self._programs.choose(choice, self._programs.all_allowed())
            self._programs.choose_edited(choice, None, edit=_unchanged, is_told=True)
            all_allowed = self._programs.all_allowed()
            self._programs.choose_edited(choice, all_allowed, edit=_unchanged, is_told=True)
        self.rules.warm_up(self.memory.hidden.dtype)
        self.memory.decode_columns(1).clear()
        self._programs.decode(1)

    def run_largest(self) -> None:
        """Run the largest steps there can be, on padding."""
        sizes = self.memory.sizes
        num_rows = self._buckets.decode.sizes[-1]
        shape = ForwardShape(0, min(sizes.num_slots, sizes.most_tokens), sizes.most_tokens)
        with torch.inference_mode():
            self.clear_forward(shape)
            self._programs.forward(shape)
            for choice in (ChoiceShape(num_rows), ChoiceShape(num_rows, has_filters=True)):
                self.clear_choice(choice)
                self._programs.choose(choice)
                self._programs.choose_edited(choice, None, edit=_unchanged, is_told=True)
        self.run_largest_recorded()

    @torch.inference_mode()
    def run_largest_recorded(self) -> None:
        """Run the largest work that is recorded, on padding."""
        num_rows = self._buckets.decode.sizes[-1]
        self.memory.decode_columns(num_rows).clear()
        self._programs.decode(num_rows)
        if self._buckets.tokens.sizes:
            shape = self._recorded_shapes(self._buckets.tokens.sizes[-1])[-1]
            self.clear_forward(shape)
            self._programs.forward(shape)

    def _record_common(self) -> None:
        began = time.monotonic()
        for size in reversed(self._buckets.decode.sizes):
            if size <= _MOST_EAGERLY_RECORDED_ROWS:
                self._make_decode(size)
        for size in reversed(self._buckets.tokens.sizes):
            for shape in self._recorded_shapes(size):
                self._make_forward(shape)
        for size in reversed(self._buckets.samples.sizes):
            for has_filters in (False, True):
                self._make_choice(ChoiceShape(size, has_filters=has_filters))
        _LOGGER.info("recorded %d graphs in %.1f s", len(self._graphs), time.monotonic() - began)

    def has(self, facts: StepFacts) -> bool:
        """Whether a step can run without recording first."""
        if facts.is_decode:
            return self._graphs.has(("decode", self.decode_size(facts.num_rows)))
        return True

    def prepare(self, facts: StepFacts) -> None:
        """Record what the step needs, if it is to be recorded and never was."""
        if facts.is_decode and not self.has(facts):
            self._make_decode(self.decode_size(facts.num_rows))

    def decode_size(self, num_rows: int) -> int:
        """The bucket of a decode step."""
        size = self._buckets.decode.holding(num_rows)
        assert size is not None, "a step has at most max_num_seqs rows"
        return size

    def forward_shape(self, facts: StepFacts) -> ForwardShape:
        """A recorded shape that holds the step, or exactly its own."""
        num_chunks = facts.num_rows - facts.num_singles
        size = self._buckets.tokens.holding(facts.num_tokens)
        if self._graphs.is_on and size is not None:
            for shape in self._recorded_shapes(size):
                if facts.num_singles <= shape.num_singles and num_chunks <= shape.num_chunks:
                    return shape
        return ForwardShape(facts.num_singles, num_chunks, facts.num_tokens)

    def choice_shape(self, facts: StepFacts) -> ChoiceShape:
        """The bucket of a step's choosing rows."""
        size = self._buckets.samples.holding(facts.num_choosing)
        assert size is not None, "a step has at most max_num_seqs rows"
        return ChoiceShape(size, has_filters=facts.has_filters)

    def decode(self, size: int) -> None:
        """Run a decode step."""
        self._graphs.run(("decode", size), lambda: self._programs.decode(size))

    def forward(self, shape: ForwardShape) -> None:
        """Run any step up to its hidden states."""
        self._graphs.run(shape, lambda: self._programs.forward(shape))

    def choose(self, shape: ChoiceShape, mask_words: torch.Tensor | None) -> None:
        """Choose tokens after `forward`; masks come with the step and are never recorded."""
        if mask_words is None:
            self._graphs.run(shape, lambda: self._programs.choose(shape))
        else:
            self._programs.choose(shape, mask_words)

    def choose_edited(
        self,
        shape: ChoiceShape,
        mask_words: torch.Tensor | None,
        *,
        edit: Callable[[torch.Tensor], None] | None,
        is_told: bool,
    ) -> torch.Tensor:
        """As `choose`, where rules are at work; never recorded."""
        return self._programs.choose_edited(shape, mask_words, edit=edit, is_told=is_told)

    def logits_at(self, indexes: torch.Tensor) -> torch.Tensor:
        """After these tokens of the step that ran last."""
        return self._programs.logits_at(indexes)

    def _recorded_shapes(self, size: int) -> tuple[ForwardShape, ForwardShape]:
        """For prompts alone, and for prompts beside decode rows; the tighter one first."""
        num_slots = self.memory.sizes.num_slots
        num_chunks = min(size, num_slots, _MOST_CHUNK_ROWS)
        return (
            ForwardShape(0, num_chunks, size),
            ForwardShape(min(size, num_slots), num_chunks, size),
        )

    @torch.inference_mode()
    def _make_decode(self, size: int) -> None:
        self.memory.decode_columns(size).clear()
        self._graphs.make(("decode", size), lambda: self._programs.decode(size))

    @torch.inference_mode()
    def _make_forward(self, shape: ForwardShape) -> None:
        self.clear_forward(shape)
        self._graphs.make(shape, lambda: self._programs.forward(shape))

    @torch.inference_mode()
    def _make_choice(self, shape: ChoiceShape) -> None:
        self.clear_choice(shape)
        self._graphs.make(shape, lambda: self._programs.choose(shape))

    def clear_forward(self, shape: ForwardShape) -> None:
        """Make every row of the packed memory a padding row."""
        singles, chunks = shape.columns(self.memory.areas.forward(self.memory.packed))
        singles.clear()
        chunks.clear()

    def clear_choice(self, shape: ChoiceShape) -> None:
        """Make every choosing row of the packed memory a padding row."""
        sample_columns(self.memory.areas.samples(self.memory.packed), shape.num_rows).clear()


def _unchanged(logits: torch.Tensor) -> None:
    """The edit of padding."""
