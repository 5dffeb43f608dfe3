"""A StepPlan as checked numpy columns. Knows the rules a plan must keep by itself, no slot's state.

Legend: R rows, C chunk rows, T tokens of chunks, N new blocks, K starts.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.internal.v1 import step_pb2
from worker_svc.batch_step import Booleans, Int32s
from worker_svc.slot_rules import RulesFault, SlotRules, read_rules

_INT32_MAX = 2**31 - 1


class ProtocolFault(Exception):
    """A message breaks the contract, or disagrees with this side; names the field and the rule.

    Nothing was changed. The epoch must end.
    """

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What bounds a resident batch; fixed for the life of a rank."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    num_blocks: int
    vocab_size: int

    @property
    def max_blocks_per_slot(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.max_model_len // self.block_size)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkColumns:
    """The rows that bring their tokens; they are the last C of the plan."""

    slots: Int32s  # [C]
    generations: Int32s  # [C]
    num_tokens: Int32s  # [C]
    start_positions: Int32s  # [C]
    samples: Booleans  # [C]
    tokens: Int32s  # [T]


@dataclass(frozen=True, slots=True, eq=False)
class BlockColumns:
    """Blocks that slots get, ordered by slot, then index."""

    slots: Int32s  # [N]
    indexes: Int32s  # [N]
    ids: Int32s  # [N]


@dataclass(frozen=True, slots=True, eq=False)
class PlanColumns:
    """All of a plan."""

    slots: Int32s  # [R]
    num_steady_rows: int
    chunks: ChunkColumns
    blocks: BlockColumns
    starts: tuple[step_pb2.SlotStart, ...]  # [K]
    rules: tuple[SlotRules | None, ...]  # [K]
    awaits_mask_rows: Int32s
    checksum: int


def read_plan(plan: step_pb2.StepPlan, *, limits: BatchLimits) -> PlanColumns:
    """The plan's columns; raises ProtocolFault when it breaks a rule that needs no slot's state."""
    slots = _int32s(plan.slots, "slots")
    require(slots.size > 0, "slots", "must not be empty")
    require_slots(slots, "slots", limits=limits)
    require(int(np.bincount(slots).max()) == 1, "slots", "no slot may come twice")
    chunks = _read_chunks(plan, slots, limits=limits)
    num_steady_rows = slots.size - chunks.slots.size
    num_tokens = num_steady_rows + chunks.tokens.size
    starts = _read_starts(plan, limits=limits)
    require(
        num_tokens <= limits.max_num_batched_tokens,
        "chunk_tokens",
        f"a step computes at most {limits.max_num_batched_tokens} tokens, this one {num_tokens}",
    )
    return PlanColumns(
        slots=slots,
        num_steady_rows=num_steady_rows,
        chunks=chunks,
        blocks=read_blocks(plan, limits=limits),
        starts=starts,
        rules=tuple(_rules_of(start, limits=limits) for start in starts),
        awaits_mask_rows=_read_awaits_mask_rows(plan, chunks.samples, num_steady_rows),
        checksum=plan.position_checksum,
    )


def require(holds: bool, field: str, rule: str) -> None:  # noqa: FBT001 - reads like assert
    """Raises ProtocolFault unless the rule holds."""
    if not holds:
        raise ProtocolFault(field, rule)


def require_slots(slots: Int32s, field: str, *, limits: BatchLimits) -> None:
    """Raises ProtocolFault unless all are slots of the batch."""
    is_in_range = slots.size == 0 or (
        int(slots.min()) >= 0 and int(slots.max()) < limits.max_num_seqs
    )
    require(is_in_range, field, f"slots go from 0 to {limits.max_num_seqs - 1}")


def _int32s(column: bytes, field: str) -> Int32s:
    require(len(column) % 4 == 0, field, "must hold whole int32 values")
    return np.frombuffer(column, "<i4")


def _read_chunks(plan: step_pb2.StepPlan, slots: Int32s, *, limits: BatchLimits) -> ChunkColumns:
    rows = _int32s(plan.chunk_rows, "chunk_rows")
    generations = _int32s(plan.chunk_generations, "chunk_generations")
    num_tokens = _int32s(plan.chunk_num_tokens, "chunk_num_tokens")
    starts = _int32s(plan.chunk_start_positions, "chunk_start_positions")
    samples: npt.NDArray[np.uint8] = np.frombuffer(plan.chunk_samples, np.uint8)
    tokens = _int32s(plan.chunk_tokens, "chunk_tokens")
    for column, field in (
        (generations, "chunk_generations"),
        (num_tokens, "chunk_num_tokens"),
        (starts, "chunk_start_positions"),
        (samples, "chunk_samples"),
    ):
        require(column.size == rows.size, field, "must have one value for each of chunk_rows")
    if rows.size:
        first = slots.size - rows.size
        is_last = first >= 0 and np.array_equal(rows, np.arange(first, slots.size))
        require(is_last, "chunk_rows", "must be the last rows of the plan, ascending")
        require(int(num_tokens.min()) >= 1, "chunk_num_tokens", "must be at least 1")
        require(int(samples.max()) <= 1, "chunk_samples", "must be 0 or 1")
        _require_positions(starts, num_tokens, limits=limits)
        _require_tokens(tokens, "chunk_tokens", limits=limits)
    total = int(num_tokens.sum(dtype=np.int64))
    require(tokens.size == total, "chunk_tokens", f"chunks have {total} tokens, got {tokens.size}")
    return ChunkColumns(
        slots=slots[slots.size - rows.size :],
        generations=generations,
        num_tokens=num_tokens,
        start_positions=starts,
        samples=samples != 0,
        tokens=tokens,
    )


def _require_positions(starts: Int32s, num_tokens: Int32s, *, limits: BatchLimits) -> None:
    field = "chunk_start_positions"
    require(int(starts.min()) >= 0, field, "must not be negative")
    ends = starts.astype(np.int64) + num_tokens
    require(
        int(ends.max()) <= limits.max_model_len,
        field,
        f"a sequence has at most {limits.max_model_len} tokens, a chunk ends at {int(ends.max())}",
    )


def _require_tokens(tokens: Int32s, field: str, *, limits: BatchLimits) -> None:
    is_in_range = tokens.size == 0 or (
        int(tokens.min()) >= 0 and int(tokens.max()) < limits.vocab_size
    )
    require(is_in_range, field, f"ids go from 0 to {limits.vocab_size - 1}")


def read_blocks(plan: step_pb2.StepPlan, *, limits: BatchLimits) -> BlockColumns:
    """The plan's new blocks; raises ProtocolFault when they break such a rule."""
    slots = _int32s(plan.new_block_slots, "new_block_slots")
    indexes = _int32s(plan.new_block_indexes, "new_block_indexes")
    ids = _int32s(plan.new_block_ids, "new_block_ids")
    for column, field in ((indexes, "new_block_indexes"), (ids, "new_block_ids")):
        require(column.size == slots.size, field, "must have one value for each new_block_slots")
    if slots.size == 0:
        return BlockColumns(slots, indexes, ids)
    require_slots(slots, "new_block_slots", limits=limits)
    is_id = int(ids.min()) >= 1 and int(ids.max()) < limits.num_blocks
    require(is_id, "new_block_ids", f"ids go from 1 to {limits.num_blocks - 1}")
    is_index = int(indexes.min()) >= 0 and int(indexes.max()) < limits.max_blocks_per_slot
    require(is_index, "new_block_indexes", f"go from 0 to {limits.max_blocks_per_slot - 1}")
    order = np.lexsort((indexes, slots))
    return BlockColumns(slots[order], indexes[order], ids[order])


def _read_starts(plan: step_pb2.StepPlan, *, limits: BatchLimits) -> tuple[step_pb2.SlotStart, ...]:
    starts = tuple(plan.starts)
    slots = [start.slot for start in starts]
    require(len(set(slots)) == len(slots), "starts.slot", "no slot may start twice")
    for start in starts:
        _check_start(start, limits=limits)
    return starts


def _rules_of(start: step_pb2.SlotStart, *, limits: BatchLimits) -> SlotRules | None:
    try:
        return read_rules(start, vocab_size=limits.vocab_size)
    except RulesFault as fault:
        raise ProtocolFault(f"starts.{fault.field}", fault.rule) from fault


def _check_start(start: step_pb2.SlotStart, *, limits: BatchLimits) -> None:
    last = limits.max_num_seqs - 1
    require(start.slot <= last, "starts.slot", f"slots go from 0 to {last}")
    require(1 <= start.generation <= _INT32_MAX, "starts.generation", "counts from 1, as int32")
    require(start.min_position <= _INT32_MAX, "starts.min_position", "must fit int32")
    ids = start.stop_token_ids
    is_in_range = not ids or (min(ids) >= 0 and max(ids) < limits.vocab_size)
    require(is_in_range, "starts.stop_token_ids", f"ids go from 0 to {limits.vocab_size - 1}")
    chosen = start.sampling
    is_temperature = math.isfinite(chosen.temperature) and chosen.temperature >= 0
    require(is_temperature, "starts.sampling.temperature", "must be finite and at least 0")
    require(chosen.top_k <= _INT32_MAX, "starts.sampling.top_k", "must fit int32")
    require(0 <= chosen.top_p <= 1, "starts.sampling.top_p", "must be from 0 to 1")
    require(0 <= chosen.min_p <= 1, "starts.sampling.min_p", "must be from 0 to 1")


def _read_awaits_mask_rows(
    plan: step_pb2.StepPlan, chunk_samples: Booleans, num_steady_rows: int
) -> Int32s:
    field = "awaits_mask_rows"
    rows = _int32s(plan.awaits_mask_rows, field)
    if rows.size == 0:
        return rows
    num_rows = num_steady_rows + chunk_samples.size
    is_ascending = bool((np.diff(rows) > 0).all())
    is_in_range = rows[0] >= 0 and rows[-1] < num_rows
    require(
        is_ascending and bool(is_in_range),
        field,
        f"must be indexes of rows 0 to {num_rows - 1}, ascending",
    )
    chunk_rows = rows[rows >= num_steady_rows] - num_steady_rows
    require(bool(chunk_samples[chunk_rows].all()), field, "must be rows that sample")
    return rows
