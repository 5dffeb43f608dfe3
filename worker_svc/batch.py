"""The resident batch: what a rank remembers of each slot between plans. Knows no tensor, no socket.

A plan is checked whole before anything changes: a ProtocolFault leaves the batch as it was.
Legend: S slots, R rows, W blocks in the widest table.
"""

from dataclasses import dataclass, replace

import numpy as np
import xxhash

from octavo.internal.v1 import step_pb2
from worker_svc.batch_step import BatchStep, Booleans, Int32s, NewBlocks, TokenMasks
from worker_svc.plan_columns import (
    BatchLimits,
    BlockColumns,
    PlanColumns,
    ProtocolFault,
    read_blocks,
    read_plan,
    require,
)
from worker_svc.slot_rules import SlotRules
from worker_svc.slot_sampling import SlotSampling

_NO_ROWS = np.zeros(0, np.int32)
_NO_BLOCKS = BlockColumns(_NO_ROWS, _NO_ROWS, _NO_ROWS)


@dataclass(frozen=True, slots=True, eq=False)
class PlannedStep:
    """A plan that was applied: the step to run, and the rows that still lack a mask."""

    number: int
    step: BatchStep
    awaits_mask_rows: Int32s


@dataclass(slots=True, eq=False)
class _SlotStates:
    """Small facts of each slot, copied before a plan changes them."""

    generation: Int32s  # [S] 0: never started in this epoch
    next_position: Int32s  # [S]
    num_blocks: Int32s  # [S]
    has_sampled: Booleans  # [S] whether the previous row in this epoch sampled

    @classmethod
    def empty(cls, num_slots: int) -> "_SlotStates":
        zeros = np.zeros((3, num_slots), np.int32)
        return cls(zeros[0], zeros[1], zeros[2], np.zeros(num_slots, np.bool_))

    def copy(self) -> "_SlotStates":
        return _SlotStates(
            self.generation.copy(),
            self.next_position.copy(),
            self.num_blocks.copy(),
            self.has_sampled.copy(),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """The plan's rows, all columns given."""

    num_tokens: Int32s  # [R]
    start_positions: Int32s  # [R]
    samples: Booleans  # [R]
    width: int  # W


@dataclass(frozen=True, slots=True, eq=False)
class _SteadyRows:
    """The rows of a plan in which all were steady: most plans repeat those of the plan before.

    What needs no look at positions is checked and gathered once.
    """

    column: bytes  # as the plan brought it
    generations: Int32s  # [R]
    step: BatchStep


class ResidentBatch:
    """The slots of one epoch after another; `clear` begins a new one."""

    def __init__(self, limits: BatchLimits, *, gathers_tables: bool = True) -> None:
        """`gathers_tables` is false when the runner keeps the slots' block tables itself."""
        self._limits = limits
        self._gathers_tables = gathers_tables
        self._states = _SlotStates.empty(limits.max_num_seqs)
        self._tables = np.zeros((limits.max_num_seqs, limits.max_blocks_per_slot), np.int32)
        self._sampling = SlotSampling(limits.max_num_seqs)
        self._rules: dict[int, SlotRules] = {}  # by slot, of those that have some
        self._steady: _SteadyRows | None = None

    def clear(self) -> None:
        """Forgets all slots: a new epoch begins."""
        self._rules.clear()
        self._states = _SlotStates.empty(self._limits.max_num_seqs)
        self._steady = None

    def apply(self, plan: step_pb2.StepPlan) -> PlannedStep:
        """Takes over everything the plan changes and returns the step it describes.

        Raises ProtocolFault when the plan breaks a rule or its checksum differs.
        """
        if self._steady is not None and _repeats(plan, self._steady):
            return PlannedStep(plan.step, self._repeat(plan, self._steady), _NO_ROWS)
        columns = read_plan(plan, limits=self._limits)
        states = self._states.copy()
        _start_slots(states, columns)
        _add_blocks(states, columns.blocks)
        rows = self._advance(states, columns)
        # nothing fails from here on
        self._states = states
        for start in columns.starts:
            self._tables[start.slot] = 0
        self._fill_tables(columns.blocks)
        self._sampling.set(columns.starts)
        self._set_rules(columns)
        step = self._step(columns, rows)
        self._steady = None
        if columns.num_steady_rows == columns.slots.size:
            generations = states.generation[columns.slots]
            self._steady = _SteadyRows(plan.slots, generations, step)
        return PlannedStep(plan.step, step, columns.awaits_mask_rows)

    def _repeat(self, plan: step_pb2.StepPlan, rows: _SteadyRows) -> BatchStep:
        """The same rows, each one position further; the same checks as of any plan."""
        states, slots = self._states, rows.step.slots
        starts = states.next_position[slots]
        _check_sum(plan.slots, rows.generations, starts, plan.position_checksum)
        blocks = _NO_BLOCKS
        if plan.new_block_slots or plan.new_block_indexes or plan.new_block_ids:
            blocks = read_blocks(plan, limits=self._limits)
            states = states.copy()
            _add_blocks(states, blocks)
        ends = starts + 1
        width = self._check_ends(ends, states.num_blocks[slots])
        # nothing fails from here on
        self._states = states
        states.next_position[slots] = ends
        self._fill_tables(blocks)
        return replace(
            rows.step,
            start_positions=starts,
            block_table=self._tables[slots, : width if self._gathers_tables else 0],
            new_blocks=NewBlocks(blocks.slots, blocks.indexes, blocks.ids),
        )

    def _advance(self, states: _SlotStates, columns: PlanColumns) -> _Rows:
        """Checks every row against its slot and moves the slot behind it."""
        steady, chunks = columns.slots[: columns.num_steady_rows], columns.chunks
        _require_rows(bool(states.has_sampled[steady].all()), "a steady row's slot did not sample")
        is_same = np.array_equal(states.generation[chunks.slots], chunks.generations)
        require(is_same, "chunk_generations", "differ from the slots' generations")
        starts = np.concatenate((states.next_position[steady], chunks.start_positions))
        num_tokens = np.ones(columns.slots.size, np.int32)
        num_tokens[columns.num_steady_rows :] = chunks.num_tokens
        samples = np.ones(columns.slots.size, np.bool_)
        samples[columns.num_steady_rows :] = chunks.samples
        generations = states.generation[columns.slots]
        _check_sum(columns.slots.tobytes(), generations, starts, columns.checksum)
        ends = starts + num_tokens
        width = self._check_ends(ends, states.num_blocks[columns.slots])
        states.next_position[columns.slots] = ends
        states.has_sampled[columns.slots] = samples
        return _Rows(num_tokens, starts, samples, width)

    def _check_ends(self, ends: Int32s, num_blocks: Int32s) -> int:
        """Whether rows may reach these positions; returns the most blocks that one needs."""
        _require_rows(int(ends.max()) <= self._limits.max_model_len, "a row exceeds max_model_len")
        needed = -(-ends // self._limits.block_size)
        has_blocks = bool((needed <= num_blocks).all())
        _require_rows(has_blocks, "a row's slot lacks blocks for its positions")
        return int(needed.max())

    def _fill_tables(self, blocks: BlockColumns) -> None:
        if blocks.slots.size:
            self._tables[blocks.slots, blocks.indexes] = blocks.ids

    def _set_rules(self, columns: PlanColumns) -> None:
        for start, rules in zip(columns.starts, columns.rules, strict=True):
            self._rules.pop(start.slot, None)
            if rules is not None:
                self._rules[start.slot] = rules

    def _row_rules(self, slots: Int32s) -> dict[int, SlotRules]:
        if not self._rules:
            return {}
        return {
            row: self._rules[slot] for row, slot in enumerate(slots.tolist()) if slot in self._rules
        }

    def _step(self, columns: PlanColumns, rows: _Rows) -> BatchStep:
        """A copy of all that the step needs: later plans may change the slots before it runs."""
        num_steady_rows, blocks = columns.num_steady_rows, columns.blocks
        width = rows.width if self._gathers_tables else 0
        return BatchStep(
            slots=columns.slots,
            num_tokens=rows.num_tokens,
            start_positions=rows.start_positions,
            is_decode=np.arange(columns.slots.size) < num_steady_rows,
            samples=rows.samples,
            token_ids=np.concatenate((np.zeros(num_steady_rows, np.int32), columns.chunks.tokens)),
            block_table=self._tables[columns.slots, :width],
            sampling=self._sampling.rows(columns.slots),
            new_blocks=NewBlocks(blocks.slots, blocks.indexes, blocks.ids),
            rules=self._row_rules(columns.slots),
        )


def _repeats(plan: step_pb2.StepPlan, rows: _SteadyRows) -> bool:
    """Whether nothing but new blocks comes with the same rows; what else there is gets read."""
    return plan.slots == rows.column and not (
        plan.starts
        or plan.chunk_rows
        or plan.chunk_generations
        or plan.chunk_num_tokens
        or plan.chunk_start_positions
        or plan.chunk_samples
        or plan.chunk_tokens
        or plan.awaits_mask_rows
    )


def with_masks(planned: PlannedStep, masks: bytes, *, vocab_size: int) -> BatchStep:
    """The step with its masks; raises ProtocolFault unless there is one for each row that waits."""
    num_rows, num_words = planned.awaits_mask_rows.size, -(-vocab_size // 32)
    require(num_rows > 0, "late_inputs.step", f"step {planned.number} waits for no masks")
    wanted = 4 * num_rows * num_words
    require(
        len(masks) == wanted,
        "late_inputs.masks",
        f"step {planned.number} waits for {wanted} bytes, got {len(masks)}",
    )
    words = np.frombuffer(masks, "<i4").reshape(num_rows, num_words)
    return replace(planned.step, masks=TokenMasks(planned.awaits_mask_rows, words))


def _start_slots(states: _SlotStates, columns: PlanColumns) -> None:
    for start in columns.starts:
        earlier = int(states.generation[start.slot])
        require(
            start.generation > earlier,
            "starts.generation",
            f"slot {start.slot} had generation {earlier}, a start has a higher one",
        )
        states.generation[start.slot] = start.generation
        states.next_position[start.slot] = 0
        states.num_blocks[start.slot] = 0
        states.has_sampled[start.slot] = False
    started = {start.slot for start in columns.starts}
    has_chunks = started <= set(columns.chunks.slots.tolist()) if started else True
    require(has_chunks, "starts.slot", "a start needs a chunk row in the same plan")


def _add_blocks(states: _SlotStates, blocks: BlockColumns) -> None:
    """Appends to the slots' tables; blocks come ordered by slot and index."""
    if blocks.slots.size == 0:
        return
    require(
        bool((states.generation[blocks.slots] > 0).all()), "new_block_slots", "a slot never started"
    )
    num_new = np.bincount(blocks.slots, minlength=states.num_blocks.size)
    first_row = np.cumsum(num_new) - num_new
    expected = np.arange(blocks.slots.size) - first_row[blocks.slots]
    expected += states.num_blocks[blocks.slots]
    require(
        np.array_equal(blocks.indexes, expected),
        "new_block_indexes",
        "block tables are append-only between starts",
    )
    states.num_blocks += num_new.astype(np.int32)


def _check_sum(slots: bytes, generations: Int32s, starts: Int32s, sent: int) -> None:
    positions = b"".join((slots, generations.tobytes(), starts.tobytes()))
    computed = xxhash.xxh3_64_intdigest(positions)
    if computed != sent:  # the text is made only then
        text = f"{sent:016x} was sent, {computed:016x} follows from this side's state"
        raise ProtocolFault("position_checksum", text)


def _require_rows(holds: bool, rule: str) -> None:  # noqa: FBT001 - reads like assert
    if not holds:
        raise ProtocolFault("slots", rule)
