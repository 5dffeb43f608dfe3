"""The running batch: columns by slot, one array for each fact. Knows no queue and no block's state.

A steady decode step reads and writes these columns and touches no object. Lengths and positions
count tokens from the start of the prompt. A slot is in use from `occupy` to `vacate`, which waits
for the steps in flight that have rows of it; each use has a higher generation.
"""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from scheduler_svc.core.sequence import TOKEN_BYTES, Sequence

T = TypeVar("T", bound=np.generic)
Slots = npt.NDArray[np.intp]

NEVER = np.iinfo(np.int32).max


class Batch:
    """What is known of each slot, as columns."""

    def __init__(self, *, num_slots: int, block_size: int, vocab_size: int) -> None:
        def column(dtype: type[T]) -> npt.NDArray[T]:
            return np.zeros(num_slots, dtype)

        self.block_size = block_size
        self.generation = column(np.int32)
        self.last_step = column(np.int64)  # last step planned with a row of this slot

        # Who is told.
        self.owner = column(np.int32)
        self.number = column(np.int32)
        self.output_index = column(np.int32)
        self.tenant = column(np.int32)
        self.num_prompt = column(np.int32)
        self.record_words = column(np.int32)  # of each token's record
        self.is_pooled = column(np.bool_)  # gives a vector instead of tokens
        self.has_grammar = column(np.bool_)
        self.num_with_grammar = 0  # slots in use
        self.num_with_records = 0  # likewise, pooled ones included

        # Where the sequence is.
        self.known_length = column(np.int32)  # tokens known
        self.next_position = column(np.int32)  # first position not planned yet
        self.accepts = column(np.bool_)  # sampled tokens are wanted
        self.decodes = column(np.bool_)  # its next row is a steady one

        # Where something rare happens.
        self.halt_length = column(np.int32)  # known tokens at which it ends or pauses
        self.last_position = column(np.int32)  # last position worth computing
        self.block_end = column(np.int32)  # first position its blocks do not cover
        self.publish_length = column(np.int32)  # tokens at which its next block is full

        # Known tokens not yet stored with the sequence, by position modulo the block size.
        self.tail = np.zeros((num_slots, block_size), np.int32)
        # For each id of the vocabulary: slots that may end with it.
        self.num_watchers = np.zeros(vocab_size, np.int32)

        self.sequences: list[Sequence | None] = [None] * num_slots
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._decoding_slots: Slots | None = None

    @property
    def num_free_slots(self) -> int:
        """Slots that `occupy` can give."""
        return len(self._free_slots)

    @property
    def num_occupied(self) -> int:
        """Slots in use."""
        return len(self.sequences) - len(self._free_slots)

    def occupied(self) -> list[Sequence]:
        """Sequences that have a slot."""
        return [sequence for sequence in self.sequences if sequence is not None]

    def sequence_in(self, slot: int) -> Sequence:
        """The sequence that has a slot."""
        sequence = self.sequences[slot]
        assert sequence is not None, f"slot {slot} belongs to nobody"
        return sequence

    def decoding_slots(self) -> Slots:
        """Slots whose next row is a steady one, ascending."""
        if self._decoding_slots is None:
            self._decoding_slots = np.flatnonzero(self.decodes)
        return self._decoding_slots

    def ready(self, slots: Slots) -> Slots:
        """Those of the slots that may have a row now: a grammar has to see the token before."""
        if not self.num_with_grammar:
            return slots
        is_known = self.known_length[slots] > self.next_position[slots]
        return slots[is_known | ~self.has_grammar[slots]]

    def set_decodes(self, slots: Slots | int, decodes: bool) -> None:  # noqa: FBT001 - a setter
        """Says whether the next rows of slots are steady ones."""
        self.decodes[slots] = decodes
        self._decoding_slots = None

    def occupy(self, sequence: Sequence, *, num_computed: int) -> int:
        """Gives a sequence with its blocks a slot; so many tokens are in the blocks already."""
        slot = self._free_slots.pop()
        self.sequences[slot] = sequence
        self.generation[slot] += 1
        self.last_step[slot] = 0
        self.output_index[slot] = sequence.output_index
        self.tenant[slot] = sequence.request.tenant_index
        self.num_prompt[slot] = sequence.num_prompt
        wishes = sequence.request.new.records
        self.record_words[slot] = wishes.token_words
        self.is_pooled[slot] = wishes.pooling is not None
        self.num_with_records += self._has_records(slot)
        self.has_grammar[slot] = sequence.grammar is not None
        self.num_with_grammar += sequence.grammar is not None
        self.known_length[slot] = sequence.num_stored
        self.next_position[slot] = num_computed
        self.accepts[slot] = True
        self.last_position[slot] = sequence.limit - 2
        self.block_end[slot] = len(sequence.blocks) * self.block_size
        sequence.slot = slot
        self.update_owner(sequence)
        self.update_halt(sequence)
        self.update_publish_length(sequence)
        self._watch(sequence, 1)
        return slot

    def vacate(self, slot: int) -> None:
        """Takes the slot back; no step in flight has a row of it that anybody wants."""
        self.sequences[slot] = None
        self.num_with_grammar -= int(self.has_grammar[slot])
        self.num_with_records -= self._has_records(slot)
        self._free_slots.append(slot)

    def part(self, sequence: Sequence) -> None:
        """Takes the sequence off its slot: what is sampled from here on is dropped.

        The slot stays in use until it is vacated.
        """
        slot = sequence.slot
        self.store_tail(sequence)
        self.set_decodes(slot, False)
        self.accepts[slot] = False
        self.sequences[slot] = None
        self._watch(sequence, -1)
        sequence.slot = -1

    def store_tail(self, sequence: Sequence) -> None:
        """Moves the tail's tokens to the sequence."""
        slot, stored = sequence.slot, sequence.num_stored
        count = int(self.known_length[slot]) - stored
        if count:
            first = stored % self.block_size
            sequence.tokens += self.tail[slot, first : first + count].tobytes()

    def store_full_tails(self, slots: Slots) -> None:
        """Moves the tails of slots whose newest token ends a block."""
        size = TOKEN_BYTES * self.block_size
        tails = self.tail[slots].tobytes()
        for row, slot in enumerate(slots.tolist()):
            tokens = self.sequence_in(slot).tokens
            tokens += tails[row * size + len(tokens) % size : (row + 1) * size]

    def update_owner(self, sequence: Sequence) -> None:
        """Says who is told of the sequence's tokens."""
        request = sequence.request
        self.owner[sequence.slot] = request.owner
        self.number[sequence.slot] = request.number

    def update_halt(self, sequence: Sequence) -> None:
        """Says where the sequence ends, or pauses while nobody owns it."""
        halt = sequence.limit
        if sequence.pause_length is not None:
            halt = min(halt, sequence.pause_length)
        self.halt_length[sequence.slot] = halt

    def update_publish_length(self, sequence: Sequence) -> None:
        """Says when the sequence's next block can be published."""
        full = (sequence.num_linked + 1) * self.block_size
        self.publish_length[sequence.slot] = NEVER if sequence.link is None else full

    def _has_records(self, slot: int) -> bool:
        return bool(self.record_words[slot] or self.is_pooled[slot])

    def _watch(self, sequence: Sequence, change: int) -> None:
        new = sequence.request.new
        ids = list({*new.eos_token_ids, *new.stop_token_ids})
        self.num_watchers[ids] += change
