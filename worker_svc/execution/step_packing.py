"""Writes a step's columns where the device will copy them from. Numpy alone; knows no kernel.

The views of a lane's memory are made once per size and kept: a step of 256 rows must not cost more
than a few dozen microseconds here.

Legend: R rows; decode rows come first.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from worker_svc.batch_step import BatchStep, Booleans, Int32s, SamplingColumns
from worker_svc.execution.packed_columns import NO_SLOT, SampleColumns
from worker_svc.execution.sampling_plan import GREEDY_BELOW
from worker_svc.execution.step_layout import (
    STOP_IDS_A_ROW,
    CopyAreas,
    ForwardShape,
    decode_columns,
    sample_columns,
)
from worker_svc.kernels.decode_columns import NO_BLOCK, DecodeColumns

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]
Rows: TypeAlias = npt.NDArray[np.intp]

_MOST_KEPT_VIEWS = 512


@dataclass(frozen=True, slots=True, eq=False)
class StepFacts:
    """What decides how a step runs; worked out from its columns without a loop over rows."""

    num_rows: int
    num_singles: int
    num_tokens: int
    num_choosing: int
    has_filters: bool
    has_masks: bool
    """Rows with a grammar's mask, or too early for more stop ids than the columns hold."""
    has_rules: bool
    """Rows that change their logits, or tell something of their tokens."""
    block_rows: Rows | None
    """The row of each new block, when each belongs to another decode row."""

    @property
    def is_decode(self) -> bool:
        """Whether the step can run as one program."""
        is_plain = not (self.has_filters or self.has_masks or self.has_rules)
        return self.num_singles == self.num_rows and is_plain and self.block_rows is not None


def facts_of(
    step: BatchStep, *, num_tokenizer_ids: int, earlier: tuple[BatchStep, StepFacts] | None = None
) -> StepFacts:
    """The facts of a step; most of them are those of an earlier one that shares its columns."""
    if earlier is not None and _are_alike(step, earlier[0]):
        return replace(earlier[1], block_rows=_block_rows(step))
    num_singles = int(np.count_nonzero(step.is_decode))
    is_all_decode = num_singles == step.slots.size
    return StepFacts(
        num_rows=step.slots.size,
        num_singles=num_singles,
        num_tokens=int(step.num_tokens.sum()),
        num_choosing=int(np.count_nonzero(step.samples)),
        has_filters=bool(filtered_rows(step, num_tokenizer_ids).any()),
        has_masks=step.masks is not None
        or bool(crowded_rows(step).any())
        or any(rules.allowed_words.size for rules in step.rules.values()),
        has_rules=bool(step.rules),
        block_rows=_block_rows(step) if is_all_decode else None,
    )


def _are_alike(step: BatchStep, earlier: BatchStep) -> bool:
    return (
        step.is_decode is earlier.is_decode
        and step.samples is earlier.samples
        and step.sampling is earlier.sampling
        and step.rules is earlier.rules
        and step.masks is None
        and earlier.masks is None
        # whether a row is too early for its stop ids changes from step to step
        and step.sampling.stop_ids.shape[1] <= STOP_IDS_A_ROW
    )


def _block_rows(step: BatchStep) -> Rows | None:
    if step.new_blocks is None or step.new_blocks.slots.size == 0:
        return np.zeros(0, np.intp)
    wanted = step.new_blocks.slots
    order = np.argsort(step.slots)
    places = np.searchsorted(step.slots, wanted, sorter=order)
    rows: Rows = order[np.minimum(places, order.size - 1)]
    # ordered by slot, so that doubles are neighbours
    is_each_apart = bool((wanted[1:] > wanted[:-1]).all())
    return rows if is_each_apart and np.array_equal(step.slots[rows], wanted) else None


def filtered_rows(step: BatchStep, num_tokenizer_ids: int) -> Booleans:
    """[R]: rows that choose after a filter. A greedy row's choice survives every filter."""
    columns = step.sampling
    has_top_k = (columns.top_k > 0) & (columns.top_k < num_tokenizer_ids)
    has_any = has_top_k | (columns.top_p < 1) | (columns.min_p > 0)
    found: Booleans = has_any & (columns.temperature >= GREEDY_BELOW) & step.samples
    return found


def crowded_rows(step: BatchStep) -> Booleans:
    """[R]: rows too early for a stop id that has no place in the columns."""
    columns = step.sampling
    if columns.stop_ids.shape[1] <= STOP_IDS_A_ROW:
        return np.zeros(step.slots.size, np.bool_)
    is_early = step.start_positions + step.num_tokens < columns.min_position
    found: Booleans = is_early & (columns.stop_ids[:, STOP_IDS_A_ROW] >= 0) & step.samples
    return found


class StepPacker:
    """Packs into one lane's memory."""

    def __init__(self, memory: torch.Tensor, areas: CopyAreas) -> None:
        self._forward = areas.forward(memory)
        self._samples = areas.samples(memory)
        self._blocks = areas.new_blocks(memory).numpy()
        self._views: dict[Hashable, tuple[Arrays, ...]] = {}
        self._written: tuple[int, Int32s, SamplingColumns] | None = None

    def decode(self, step: BatchStep, size: int, block_rows: Rows) -> int:
        """Columns of a decode step in a bucket of `size` rows; returns how many words to copy."""
        (columns,) = self._cut(size, lambda: (arrays_of(decode_columns(self._forward, size)),))
        count = step.slots.size
        if self._holds(step, size):
            columns["positions"][:count] = step.start_positions
            columns["new_index"][:] = NO_BLOCK
        else:
            _write_singles(columns, step, count)
            _write_choice(columns, step.sampling, step.sampling.seed.view(np.int64), count)
            self._written = size, step.slots, step.sampling
        if step.new_blocks is not None:
            columns["new_index"][block_rows] = step.new_blocks.indexes
            columns["new_block"][block_rows] = step.new_blocks.ids
        num_words = DecodeColumns.num_words(size, num_stop_ids=0)
        ends = step.start_positions + step.num_tokens
        if not _write_early_stops(columns["stop_ids"], step.sampling, ends):
            return num_words
        return DecodeColumns.num_words(size, num_stop_ids=STOP_IDS_A_ROW)

    def forward(self, step: BatchStep, shape: ForwardShape, facts: StepFacts) -> int:
        """Columns of any step; its new blocks travel apart. Returns how many words to copy."""
        singles, chunks = self._cut(
            shape,
            lambda: tuple(map(arrays_of, shape.columns(self._forward))),
        )
        self._written = None
        first, count = facts.num_singles, facts.num_rows - facts.num_singles
        _write_singles(singles, step, first)
        chunks["slots"][:count] = step.slots[first:]
        chunks["slots"][count:] = NO_SLOT
        chunks["starts"][:count] = step.start_positions[first:]
        ends = chunks["first_tokens"]
        ends[0] = first
        np.cumsum(step.num_tokens[first:], out=ends[1 : count + 1])
        ends[1 : count + 1] += first
        ends[count + 1 :] = ends[count]
        num_new = facts.num_tokens - first
        chunks["token_ids"][:num_new] = step.token_ids[first:]
        return shape.num_words - (shape.num_tokens - num_new)

    def choice(self, step: BatchStep, size: int, *, num_tokenizer_ids: int) -> int:
        """Columns of the rows that choose, in a bucket of `size`; returns the words to copy."""
        (columns,) = self._cut(
            ("choice", size), lambda: (arrays_of(sample_columns(self._samples, size)),)
        )
        chosen = np.flatnonzero(step.samples)
        count, sampling = chosen.size, step.sampling
        ends = (step.start_positions + step.num_tokens)[chosen]
        picked = SamplingColumns(
            **{f.name: getattr(sampling, f.name)[chosen] for f in fields(SamplingColumns)}
        )
        _write_choice(columns, picked, picked.seed.view(np.int64), count)
        columns["slots"][:count] = step.slots[chosen]
        columns["slots"][count:] = NO_SLOT
        columns["last_indexes"][:count] = np.cumsum(step.num_tokens)[chosen] - 1
        columns["last_indexes"][count:] = 0
        columns["positions"][:count] = ends
        _write_filters(columns, picked, count, num_tokenizer_ids)
        columns["mask_rows"][:] = -1
        _write_early_stops(columns["stop_ids"], picked, ends)
        return SampleColumns.num_words(size, num_stop_ids=STOP_IDS_A_ROW)

    def mask_rows(self, size: int, rows: Int32s) -> None:
        """Give the choosing rows `rows` the masks 0, 1, 2..; after `choice` of this size."""
        (columns,) = self._views[("choice", size)]
        columns["mask_rows"][rows] = np.arange(rows.size)

    def new_blocks(self, slots: Int32s, indexes: Int32s, ids: Int32s, *, width: int) -> None:
        """Places in the flat tables, and the blocks; at most MOST_NEW_BLOCKS of them."""
        count = slots.size
        places = self._blocks[: 2 * count].view(np.int64)
        np.multiply(slots, width, out=places, dtype=np.int64)
        places += indexes
        self._blocks[2 * count : 3 * count] = ids

    def _holds(self, step: BatchStep, size: int) -> bool:
        """Whether the memory holds these rows and choices: steady rows share their columns."""
        if self._written is None:
            return False
        written_size, slots, sampling = self._written
        return written_size == size and slots is step.slots and sampling is step.sampling

    def _cut(self, key: Hashable, cut: Callable[[], tuple[Arrays, ...]]) -> tuple[Arrays, ...]:
        found = self._views.get(key)
        if found is None:
            found = cut()
            # shapes of steps without a bucket come and go
            if len(self._views) < _MOST_KEPT_VIEWS:
                self._views[key] = found
        return found


def arrays_of(columns: object) -> Arrays:
    """The columns of a dataclass of tensors, as numpy views of the same memory."""
    return {f.name: getattr(columns, f.name).numpy() for f in fields(columns)}  # type: ignore[arg-type] # dataclasses


def _write_singles(columns: Arrays, step: BatchStep, count: int) -> None:
    columns["slots"][:count] = step.slots[:count]
    columns["slots"][count:] = NO_SLOT
    columns["positions"][:count] = step.start_positions[:count]
    columns["new_index"][:] = NO_BLOCK


def _write_choice(
    columns: Arrays, sampling: SamplingColumns, seeds: npt.NDArray[np.int64], count: int
) -> None:
    columns["seeds"][:count] = seeds
    temperature = columns["temperature"]
    temperature[:count] = sampling.temperature
    temperature[count:] = 0
    temperature[temperature < GREEDY_BELOW] = 0
    columns["min_position"][:count] = sampling.min_position


def _write_filters(
    columns: Arrays, sampling: SamplingColumns, count: int, num_tokenizer_ids: int
) -> None:
    is_off = (sampling.top_k <= 0) | (sampling.top_k > num_tokenizer_ids)
    columns["top_k"][:count] = np.where(is_off, num_tokenizer_ids, sampling.top_k)
    columns["top_k"][count:] = 1
    columns["top_p"][:count] = sampling.top_p
    columns["top_p"][count:] = 1
    with np.errstate(divide="ignore"):
        columns["log_min_p"][:count] = np.log(sampling.min_p)
    columns["log_min_p"][count:] = -np.inf


def _write_early_stops(places: npt.NDArray[Any], sampling: SamplingColumns, ends: Int32s) -> bool:
    """Whether any row is too early for its stop ids; only then is anything written."""
    if not (ends < sampling.min_position).any():
        return False
    stop_ids = sampling.stop_ids[:, :STOP_IDS_A_ROW]
    count, width = stop_ids.shape
    places[:count, :width] = stop_ids
    places[:count, width:] = -1
    return True
