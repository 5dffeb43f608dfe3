"""What is lost with the workers: batch, blocks, cache, steps in flight. Decides nothing.

A new epoch is a new value of this class; nothing of the old one is looked at again.
"""

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from scheduler_svc.core.batch import Batch, Slots
from scheduler_svc.core.block_pool import BlockPool
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.sequence import Sequence

# Of the rows; with more that have a grammar, one step is planned at a time.
_MAX_GRAMMAR_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptStretch:
    """Positions of a prompt whose records a step brings."""

    sequence: Sequence
    slot: int
    first_position: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepInFlight:
    """What the core must remember of a plan until its result is there."""

    step: int
    slots: Slots  # [num_rows]
    sampling_rows: Slots  # [num_sampling_rows] indexes into slots
    num_decode_rows: int
    num_prefill_tokens: int
    prompt_stretches: tuple[PromptStretch, ...] = ()  # in row order


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Departure:
    """A slot and blocks that steps in flight may still touch."""

    last_step: int
    slot: int
    blocks: tuple[int, ...]
    sequence: Sequence | None  # a preempted one, which waits for its last tokens

    def without_sequence(self) -> "Departure":
        """The same, with nobody waiting for tokens."""
        return replace(self, sequence=None)


class Epoch:
    """One conversation with a rank group whose batch and KV contents were empty at its start."""

    def __init__(self, limits: WorkerLimits, *, pool: BlockPool) -> None:
        self.limits = limits
        self.pool = pool
        self.batch = Batch(
            num_slots=limits.max_num_seqs,
            block_size=limits.block_size,
            vocab_size=limits.vocab_size,
        )
        self.prefilling: list[Sequence] = []  # running, prompt not issued in full; oldest first
        self.in_flight: deque[StepInFlight] = deque()
        self.departures: list[Departure] = []
        self.num_issued = 0
        self.num_done = 0

    def has_room_in_flight(self, max_steps: int) -> bool:
        """Whether another step may be planned, at most so many being out.

        Rows with a grammar run in every other step of two in flight: with more than a few of them
        it is better to plan one step at a time, with all rows.
        """
        batch = self.batch
        if batch.num_with_grammar > _MAX_GRAMMAR_SHARE * batch.num_occupied:
            max_steps = 1
        return self.num_issued - self.num_done < max_steps

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-num_tokens // self.limits.block_size)

    def is_idle(self, slot: int) -> bool:
        """Whether no step in flight has a row of the slot's present use."""
        return int(self.batch.last_step[slot]) <= self.num_done

    def held_blocks(self) -> dict[int, tuple[int, ...]]:
        """Blocks of every sequence with a slot, by slot; preempted ones in flight included."""
        held = {each.slot: tuple(each.blocks) for each in self.batch.occupied()}
        held.update((gone.slot, gone.blocks) for gone in self.departures if gone.sequence)
        return held

    def publish_full_blocks(self, slots: Slots | list[int]) -> None:
        """Makes those blocks findable whose tokens are stored and whose writing is issued."""
        batch, size = self.batch, self.limits.block_size
        issued = np.minimum(batch.known_length[slots], batch.next_position[slots])
        ready = (issued >= batch.publish_length[slots]).nonzero()[0]
        if not len(ready):
            return
        ready_slots, num_full = np.asarray(slots)[ready], issued[ready] // size
        batch.publish_length[ready_slots] = (num_full + 1) * size
        for slot, count in zip(ready_slots.tolist(), num_full.tolist(), strict=True):
            self._publish(batch.sequence_in(slot), count)

    def _publish(self, sequence: Sequence, num_full: int) -> None:
        link, size = sequence.link, self.limits.block_size
        assert link is not None, "a sequence that publishes nothing has a block to publish"
        for index in range(sequence.num_linked, num_full):
            tokens = sequence.token_slice(index * size, (index + 1) * size)
            link = self.pool.publish(sequence.blocks[index], link, tokens)
        sequence.link, sequence.num_linked = link, num_full

    def flush_cache(self) -> int:
        """Forgets all published blocks; what runs publishes nothing more, its chain is cut."""
        num_blocks = len(self.pool.cache)
        self.pool.flush()
        for sequence in self.batch.occupied():
            sequence.link = None
            self.batch.update_publish_length(sequence)
        return num_blocks
