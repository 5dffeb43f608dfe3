"""Writes step plans the way the contract describes them, one slot and one row at a time. No numpy.

Keeps what a core would know of each slot, in plain lists: slow, obvious, and the reference of what
a resident batch must hold.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import xxhash

from octavo.internal.v1 import step_pb2

GREEDY = step_pb2.Sampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0)


@dataclass(slots=True)
class SlotRecord:
    """What is known of one slot."""

    generation: int = 0
    next_position: int = 0
    has_sampled: bool = False
    blocks: list[int] = field(default_factory=list)
    start: step_pb2.SlotStart = field(default_factory=step_pb2.SlotStart)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A row that brings its tokens."""

    slot: int
    tokens: Sequence[int]
    position: int
    samples: bool = True
    start: step_pb2.SlotStart | None = None


class PlanWriter:
    """One epoch's plans."""

    def __init__(self, epoch: step_pb2.Epoch, *, block_size: int) -> None:
        self.epoch = epoch
        self.block_size = block_size
        self.slots: dict[int, SlotRecord] = {}
        self.step = 0

    def record(self, slot: int) -> SlotRecord:
        """The slot's record."""
        return self.slots.setdefault(slot, SlotRecord())

    def start(
        self,
        slot: int,
        *,
        sampling: step_pb2.Sampling = GREEDY,
        num_prompt_tokens: int = 0,
        stop_token_ids: Sequence[int] = (),
        min_position: int = 0,
    ) -> step_pb2.SlotStart:
        """The start of the slot's next generation."""
        return step_pb2.SlotStart(
            slot=slot,
            generation=self.record(slot).generation + 1,
            num_prompt_tokens=num_prompt_tokens,
            sampling=sampling,
            stop_token_ids=stop_token_ids,
            min_position=min_position,
        )

    def plan(
        self,
        *,
        steady: Sequence[int] = (),
        chunks: Sequence[Chunk] = (),
        new_blocks: Iterable[tuple[int, int]] = (),
        masked_rows: Sequence[int] = (),
    ) -> step_pb2.StepPlan:
        """The next plan; the records follow it. `new_blocks` are (slot, block id)."""
        self.step += 1
        plan = step_pb2.StepPlan(epoch=self.epoch, step=self.step)
        self._write_starts(plan, [c.start for c in chunks if c.start is not None])
        self._write_blocks(plan, new_blocks)
        rows = [(s, self.record(s).next_position, 1, True) for s in steady]
        rows += [(c.slot, c.position, len(c.tokens), c.samples) for c in chunks]
        self._write_chunks(plan, chunks, first_row=len(steady))
        plan.slots = int32s(slot for slot, *_ in rows)
        plan.awaits_mask_rows = int32s(masked_rows)
        plan.position_checksum = xxhash.xxh3_64_intdigest(
            plan.slots
            + int32s(self.record(slot).generation for slot, *_ in rows)
            + int32s(position for _, position, *_ in rows)
        )
        for slot, position, num_tokens, samples in rows:
            record = self.record(slot)
            record.next_position, record.has_sampled = position + num_tokens, samples
        return plan

    def blocks_needed(self, slot: int, end: int) -> int:
        """How many blocks the slot lacks to hold positions below `end`."""
        return max(0, -(-end // self.block_size) - len(self.record(slot).blocks))

    def _write_starts(self, plan: step_pb2.StepPlan, starts: Sequence[step_pb2.SlotStart]) -> None:
        for start in starts:
            self.slots[start.slot] = SlotRecord(generation=start.generation, start=start)
            plan.starts.append(start)

    def _write_blocks(self, plan: step_pb2.StepPlan, new_blocks: Iterable[tuple[int, int]]) -> None:
        for slot, block in new_blocks:
            blocks = self.record(slot).blocks
            plan.new_block_slots += int32s([slot])
            plan.new_block_indexes += int32s([len(blocks)])
            plan.new_block_ids += int32s([block])
            blocks.append(block)

    def _write_chunks(
        self, plan: step_pb2.StepPlan, chunks: Sequence[Chunk], *, first_row: int
    ) -> None:
        plan.chunk_rows = int32s(range(first_row, first_row + len(chunks)))
        plan.chunk_generations = int32s(self.record(c.slot).generation for c in chunks)
        plan.chunk_num_tokens = int32s(len(c.tokens) for c in chunks)
        plan.chunk_start_positions = int32s(c.position for c in chunks)
        plan.chunk_samples = bytes(int(c.samples) for c in chunks)
        plan.chunk_tokens = int32s(token for c in chunks for token in c.tokens)


def int32s(values: Iterable[int]) -> bytes:
    """A column of little-endian int32."""
    listed = list(values)
    return struct.pack(f"<{len(listed)}i", *listed)


def from_int32s(column: bytes) -> list[int]:
    """The values of such a column."""
    return list(struct.unpack(f"<{len(column) // 4}i", column))
