"""A plan while it is made: rows, chunks, new blocks and starts, as they are decided. Decides none.

Adding a row moves the batch's columns on, so that the draft and the batch always agree.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from scheduler_svc.core.batch import Slots
from scheduler_svc.core.epoch import Epoch, PromptStretch, StepInFlight
from scheduler_svc.core.plan import Int32s, MaskedRow, SlotStart, StepPlan
from scheduler_svc.core.sequence import Sequence

_NO_SLOTS: Slots = np.empty(0, np.intp)
_NONE: Int32s = np.empty(0, np.int32)
_NO_FLAGS: npt.NDArray[np.uint8] = np.empty(0, np.uint8)


class Draft:
    """The next step of an epoch."""

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch
        self.step = epoch.num_issued + 1
        self.chunked: list[Sequence] = []
        self.decode_slots = _NO_SLOTS
        self._chunk_slots: list[int] = []
        self._chunk_starts: list[int] = []
        self._chunk_counts: list[int] = []
        self._chunk_samples: list[bool] = []
        self._chunk_tokens: list[bytes] = []
        self._block_slots: list[int] = []
        self._block_indexes: list[int] = []
        self._block_ids: list[int] = []
        self._starts: list[SlotStart] = []
        self._prompt_stretches: list[PromptStretch] = []

    @property
    def num_decode_rows(self) -> int:
        """Steady rows so far."""
        return len(self.decode_slots)

    def set_decodes(self, slots: Slots) -> None:
        """Gives each of these slots a steady row."""
        batch = self.epoch.batch
        self.decode_slots = slots
        position = batch.next_position[slots] + 1
        batch.next_position[slots] = position
        batch.last_step[slots] = self.step
        last = slots[position > batch.last_position[slots]]
        if len(last):
            batch.set_decodes(last, False)

    def add_blocks(self, slots: list[int], blocks: list[int]) -> None:
        """Gives each of the slots another block, at the end of its table."""
        batch = self.epoch.batch
        for slot, block in zip(slots, blocks, strict=True):
            table = batch.sequence_in(slot).blocks
            self._block_indexes.append(len(table))
            table.append(block)
        self._block_slots += slots
        self._block_ids += blocks
        batch.block_end[slots] += batch.block_size

    def add_start(self, sequence: Sequence) -> None:
        """Lists a sequence that has just taken its slot, with its blocks."""
        new = sequence.request.new
        records_from = sequence.records_begin = sequence.prompt_records_from
        needs_history = new.sampling.needs_history or records_from
        self._starts.append(
            SlotStart(
                slot=sequence.slot,
                generation=int(self.epoch.batch.generation[sequence.slot]),
                num_prompt_tokens=sequence.num_prompt,
                sampling=sequence.sampling,
                stop_token_ids=tuple(dict.fromkeys(new.eos_token_ids + new.stop_token_ids)),
                min_position=sequence.num_prompt + new.min_tokens,
                history=bytes(sequence.tokens) if needs_history else b"",
                prompt_records_from=records_from,
                num_prompt_top=new.records.num_prompt_top if records_from else 0,
                pooling=new.records.pooling,
            )
        )
        self._block_slots += [sequence.slot] * len(sequence.blocks)
        self._block_indexes += range(len(sequence.blocks))
        self._block_ids += sequence.blocks

    def add_chunk(self, sequence: Sequence, num_tokens: int) -> None:
        """Gives a prefilling sequence a row for its next known tokens."""
        batch, slot = self.epoch.batch, sequence.slot
        start = int(batch.next_position[slot])
        stop = start + num_tokens
        is_last = stop == sequence.num_stored
        self.chunked.append(sequence)
        self._chunk_slots.append(slot)
        self._chunk_starts.append(start)
        self._chunk_counts.append(num_tokens)
        self._chunk_samples.append(is_last)
        self._chunk_tokens.append(sequence.token_slice(start, stop))
        self._note_stretch(sequence, start, stop)
        batch.next_position[slot] = stop
        batch.last_step[slot] = self.step
        if is_last:
            self.epoch.prefilling.remove(sequence)
            batch.set_decodes(slot, stop <= int(batch.last_position[slot]))

    def _note_stretch(self, sequence: Sequence, start: int, stop: int) -> None:
        """Remembers which records the chunk brings: of tokens that follow its own."""
        if not sequence.records_begin:
            return
        first = max(start + 1, sequence.records_begin)
        last = min(stop, sequence.num_prompt - 1)
        if first <= last:
            stretch = PromptStretch(
                sequence=sequence,
                slot=sequence.slot,
                first_position=first,
                count=last - first + 1,
            )
            self._prompt_stretches.append(stretch)

    def finish(self) -> StepPlan | None:
        """Issues the step; None, and nothing is issued, if it has no rows."""
        if not self.num_decode_rows and not self._chunk_slots:
            return None
        batch, num_chunks = self.epoch.batch, len(self._chunk_slots)
        slots, chunk_rows = self.decode_slots, _NONE
        if num_chunks:  # most steps have none, and are not to pay for them
            slots = np.concatenate((slots, np.array(self._chunk_slots, np.intp)))
            chunk_rows = np.arange(self.num_decode_rows, len(slots), dtype=np.int32)
        generations = batch.generation[slots]
        starts = batch.next_position[slots]
        starts[: self.num_decode_rows] -= 1
        if num_chunks:
            starts[self.num_decode_rows :] = self._chunk_starts
        plan_slots = slots.astype(np.int32)
        num_prefill_tokens = sum(self._chunk_counts)
        plan = StepPlan(
            step=self.step,
            slots=plan_slots,
            chunk_rows=chunk_rows,
            chunk_generations=generations[self.num_decode_rows :],
            chunk_num_tokens=_column(self._chunk_counts),
            chunk_start_positions=_column(self._chunk_starts),
            chunk_samples=np.array(self._chunk_samples, np.uint8) if num_chunks else _NO_FLAGS,
            chunk_tokens=np.frombuffer(b"".join(self._chunk_tokens), np.int32),
            new_block_slots=_column(self._block_slots),
            new_block_indexes=_column(self._block_indexes),
            new_block_ids=_column(self._block_ids),
            starts=tuple(self._starts),
            position_checksum=_checksum(plan_slots, generations, starts),
            masked_rows=tuple(self._masked_rows(slots)) if batch.num_with_grammar else (),
            num_decode_rows=self.num_decode_rows,
            num_prefill_tokens=num_prefill_tokens,
        )
        self._issue(slots, num_prefill_tokens)
        return plan

    def _masked_rows(self, slots: Slots) -> Iterator[MaskedRow]:
        """Sampling rows with a grammar. Of a chunk row it sees all generated tokens."""
        batch = self.epoch.batch
        for row in np.flatnonzero(batch.has_grammar[slots]).tolist():
            slot, chunk = int(slots[row]), row - self.num_decode_rows
            if chunk >= 0 and not self._chunk_samples[chunk]:
                continue
            sequence = batch.sequence_in(slot)
            assert sequence.grammar is not None, "a living sequence has lost its grammar"
            if chunk >= 0:
                first, tokens = 0, sequence.generated_from(0)
            else:
                newest = int(batch.known_length[slot]) - 1
                first = newest - sequence.num_prompt
                place = newest % batch.block_size
                tokens = batch.tail[slot, place : place + 1].copy()
            yield MaskedRow(
                row=row,
                slot=slot,
                generation=int(batch.generation[slot]),
                grammar=sequence.grammar,
                first_index=first,
                tokens=tokens,
            )

    def _issue(self, slots: Slots, num_prefill_tokens: int) -> None:
        sampling_rows = np.arange(len(slots))
        if self._chunk_slots:
            samples = np.ones(len(slots), np.bool_)
            samples[self.num_decode_rows :] = self._chunk_samples
            sampling_rows = np.flatnonzero(samples)
        self.epoch.in_flight.append(
            StepInFlight(
                step=self.step,
                slots=slots,
                sampling_rows=sampling_rows,
                num_decode_rows=self.num_decode_rows,
                num_prefill_tokens=num_prefill_tokens,
                prompt_stretches=tuple(self._prompt_stretches),
            )
        )
        self.epoch.num_issued = self.step


def _column(values: list[int]) -> Int32s:
    return np.array(values, np.int32) if values else _NONE


def _checksum(*columns: Int32s) -> int:
    return xxh3_64_intdigest(np.concatenate(columns).tobytes())
