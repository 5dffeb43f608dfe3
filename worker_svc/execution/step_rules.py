"""A step's rules for a device, and what the device told of it, back in words. Numpy and sending.

Rows are numbered among those that choose. A slot's tokens so far are put onto the device when its
first row since its start chooses; from then on the device keeps them.

Legend: n rows told, E rows whose logits depend on what came.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worker_svc.batch_step import NO_RECORDS, BatchStep, Booleans, Int32s, StepRecords
from worker_svc.execution.graph_device import GraphDevice
from worker_svc.execution.rule_device import (
    MOST_FURTHER_IDS,
    NUM_RECENT,
    Edits,
    Penalties,
    RuleDevice,
    Telling,
)
from worker_svc.execution.telling_programs import NUM_FACTS
from worker_svc.execution.token_records import RecordWish, joined
from worker_svc.kernels.rule_programs import IN_PROMPT
from worker_svc.slot_rules import MOST_BAD_LENGTH, Pooling, SlotRules

MOST_TOLD_AT_ONCE = 128
"""Rows of a prompt's logits made at once."""

assert MOST_BAD_LENGTH <= NUM_RECENT


@dataclass(frozen=True, slots=True, eq=False)
class ToldRow:
    """A wish, and the choosing row whose token it is of; -1: of a prompt."""

    wish: RecordWish
    place: int


@dataclass(slots=True, eq=False)
class Told:
    """What a launched step will tell, in the order of the host's copy."""

    rows: list[ToldRow]
    prompt_rows: list[ToldRow]
    vector_places: list[int]  # choosing rows of the vectors
    pooled_places: list[int]  # choosing rows that give a vector
    widths: list[tuple[int, int]]  # of each piece of rows: how many, words of each
    most_tops: list[int]
    hidden_size: int
    host: torch.Tensor | None = None

    def records(self, failed: Booleans) -> StepRecords:
        """The words, once the host's copy is there."""
        if self.host is None:
            return NO_RECORDS
        words: npt.NDArray[np.int32] = self.host.numpy()
        told: list[bytes] = []
        at = 0
        rows = [*self.rows, *self.prompt_rows]
        for (count, width), most_top in zip(self.widths, self.most_tops, strict=True):
            part = words[at : at + count * width].reshape(count, width)
            for row, answer in zip(rows[len(told) : len(told) + count], part, strict=True):
                told.append(_record(row, answer, most_top=most_top))
            at += count * width
        vectors = words[at:].reshape(-1, self.hidden_size)
        num_rows = len(self.rows)
        return StepRecords(
            token_records=b"".join(
                record
                for row, record in zip(self.rows, told[:num_rows], strict=True)
                if not failed[row.place]
            ),
            prompt_records=b"".join(told[num_rows:]),
            pooled=b"".join(
                vector.tobytes()
                for place, vector in zip(self.vector_places, vectors, strict=True)
                if not failed[place]
            ),
        )


class StepRules:
    """Prepares what rules need of the device for each step that has some."""

    def __init__(self, rules: RuleDevice, device: GraphDevice) -> None:
        self._rules = rules
        self._device = device
        self._begun: dict[int, SlotRules] = {}

    def begin_epoch(self) -> None:
        """Slots start anew."""
        self._begun.clear()

    def edits(self, step: BatchStep) -> Edits | None:
        """What changes the step's logits; None: nothing does."""
        places = np.cumsum(step.samples) - 1
        rows = [
            (int(places[row]), row, rules)
            for row, rules in sorted(step.rules.items())
            if step.samples[row] and rules.has_edits
        ]
        if not rows:
            return None
        shifts = [(place, rules) for place, _, rules in rows if rules.bias_ids.size]
        sequences, tokens = self._sequences(step, rows)
        ends = step.start_positions + step.num_tokens
        reading = [(place, row, rules) for place, row, rules in rows if rules.reads_history]
        for _, row, rules in reading:
            self._begin(int(step.slots[row]), rules)
        penalties = None
        if reading:
            columns = self._sent(
                [place for place, _, _ in reading],
                [int(step.slots[row]) for _, row, _ in reading],
                [int(ends[row]) for _, row, _ in reading],
            )
            numbers = [
                (one.repetition_penalty, one.frequency_penalty, one.presence_penalty)
                for _, _, one in reading
            ]
            values = self._device.send(np.array(numbers, np.float32).ravel().view(np.int32))
            penalties = Penalties(
                rows=columns[0],
                slots=columns[1],
                positions=columns[2],
                penalties=values.view(torch.float32),
            )
        return Edits(
            penalties=penalties,
            shift_rows=self._device.send(
                _concatenated([np.full(r.bias_ids.size, p, np.int32) for p, r in shifts])
            ),
            shift_ids=self._device.send(_concatenated([r.bias_ids for _, r in shifts])),
            shifts=self._device.send(
                _concatenated([r.bias_values.view(np.int32) for _, r in shifts])
            ).view(torch.float32),
            sequences=self._device.send(sequences.ravel()).view(-1, 5),
            sequence_tokens=self._device.send(tokens),
        )

    def telling(self, wishes: Sequence[RecordWish], *, tokens: torch.Tensor | None) -> Telling:
        """For rows of logits; their tokens may lie on the device already."""
        most_ids = max((one.ids.size for one in wishes), default=0)
        assert most_ids <= MOST_FURTHER_IDS
        ids = np.full((len(wishes), max(most_ids, 1)), -1, np.int32)
        for row, wish in enumerate(wishes):
            ids[row, : wish.ids.size] = wish.ids
        if tokens is None:
            tokens = self._device.send(np.array([one.token for one in wishes], np.int32))
        return Telling(
            tokens=tokens,
            num_tops=self._device.send(np.array([one.num_top for one in wishes], np.int32)),
            ids=self._device.send(ids.ravel()).view(len(wishes), -1),
            most_top=max((one.num_top for one in wishes), default=0),
        )

    def tell(
        self,
        step: BatchStep,
        hidden: torch.Tensor,
        *,
        raw: torch.Tensor | None,
        chosen: torch.Tensor,
        logits_at: Callable[[torch.Tensor], torch.Tensor],
    ) -> Told:
        """Launch what the step tells. `raw` are its untouched logits, of the rows that choose."""
        told = Told(
            rows=told_rows(step),
            prompt_rows=[],
            vector_places=[],
            pooled_places=pooled_places(step),
            widths=[],
            most_tops=[],
            hidden_size=hidden.shape[1],
        )
        pieces: list[torch.Tensor] = []

        def add(logits: torch.Tensor, telling: Telling) -> None:
            answer = self._rules.tell(logits, telling)
            told.widths.append((answer.shape[0], answer.shape[1]))
            told.most_tops.append(telling.most_top)
            pieces.append(answer.flatten())

        if told.rows:
            assert raw is not None
            places = self._device.send(np.array([row.place for row in told.rows], np.int32))
            tokens = chosen.index_select(0, places)
            add(
                raw.index_select(0, places),
                self.telling([row.wish for row in told.rows], tokens=tokens),
            )
        indexes = self._prompt_rows(step, told)
        for first in range(0, len(indexes), MOST_TOLD_AT_ONCE):
            part = slice(first, first + MOST_TOLD_AT_ONCE)
            where = self._device.send(np.array(indexes[part], np.int32))
            wishes = [row.wish for row in told.prompt_rows[part]]
            add(logits_at(where), self.telling(wishes, tokens=None))
        pieces += self._vectors(step, hidden, told)
        if pieces:
            told.host = self._device.receive(torch.cat(pieces))
        return told

    def _prompt_rows(self, step: BatchStep, told: Told) -> list[int]:
        """Where the logits before each wanted token are, among the step's tokens."""
        indexes = []
        firsts = np.cumsum(step.num_tokens) - step.num_tokens
        for row, rules in sorted(step.rules.items()):
            start = int(step.start_positions[row])
            for position in rules.prompt_positions(start, start + int(step.num_tokens[row])):
                indexes.append(int(firsts[row]) + position - 1 - start)
                wish = RecordWish(int(rules.history[position]), rules.num_prompt_top)
                told.prompt_rows.append(ToldRow(wish, -1))
        return indexes

    def _vectors(self, step: BatchStep, hidden: torch.Tensor, told: Told) -> list[torch.Tensor]:
        vectors = []
        places = np.cumsum(step.samples) - 1
        firsts = np.cumsum(step.num_tokens) - step.num_tokens
        for row, rules in sorted(step.rules.items()):
            if rules.pooling is Pooling.NONE:
                continue
            slot, is_mean = int(step.slots[row]), rules.pooling is Pooling.MEAN
            first, count = int(firsts[row]), int(step.num_tokens[row])
            vector = self._rules.pool(
                slot,
                hidden[first : first + count],
                is_mean=is_mean,
                is_first=self._begun.get(slot) is not rules,
            )
            self._begun[slot] = rules
            if step.samples[row]:
                told.vector_places.append(int(places[row]))
                whole = vector / rules.num_prompt_tokens if is_mean else vector
                vectors.append(whole.view(torch.int32))
        return vectors

    def _begin(self, slot: int, rules: SlotRules) -> None:
        if self._begun.get(slot) is rules:
            return
        self._begun[slot] = rules
        part, history = self._rules.part, rules.history
        found, counts = np.unique(history[rules.num_prompt_tokens :], return_counts=True)
        seen = np.unique(history)
        values = np.where(np.isin(seen, history[: rules.num_prompt_tokens]), IN_PROMPT, 0)
        values[np.searchsorted(seen, found)] += counts
        is_ours = (seen >= part.first_id) & (seen < part.first_id + part.num_ids)
        last = history[-NUM_RECENT:]
        recent = np.zeros(NUM_RECENT, np.int32)
        recent[np.arange(history.size - last.size, history.size) % NUM_RECENT] = last
        self._rules.begin(
            slot,
            self._device.send((seen[is_ours] - part.first_id).astype(np.int32)),
            self._device.send(values[is_ours].astype(np.int32)),
            self._device.send(recent),
        )

    def _sequences(
        self, step: BatchStep, rows: Sequence[tuple[int, int, SlotRules]]
    ) -> tuple[Int32s, Int32s]:
        columns, tokens, first = [], [], 0
        for place, row, rules in rows:
            end = int(step.start_positions[row] + step.num_tokens[row])
            for one in rules.bad_sequences:
                columns.append((place, int(step.slots[row]), end, first, one.size))
                tokens.append(one)
                first += one.size
        return np.array(columns, np.int32).reshape(-1, 5), _concatenated(tokens)

    def _sent(self, *columns: list[int]) -> list[torch.Tensor]:
        return [self._device.send(np.array(column, np.int32)) for column in columns]


def told_rows(step: BatchStep) -> list[ToldRow]:
    """Sampling rows with a record."""
    places = np.cumsum(step.samples) - 1
    return [
        ToldRow(RecordWish(0, rules.num_top, rules.logprob_ids), int(places[row]))
        for row, rules in sorted(step.rules.items())
        if rules.has_logprobs and rules.pooling is Pooling.NONE and step.samples[row]
    ]


def pooled_places(step: BatchStep) -> list[int]:
    """Choosing rows that give a vector."""
    places = np.cumsum(step.samples) - 1
    return [
        int(places[row])
        for row, rules in sorted(step.rules.items())
        if rules.pooling is not Pooling.NONE and step.samples[row]
    ]


def _record(row: ToldRow, answer: Int32s, *, most_top: int) -> bytes:
    """A record out of the device's words, whose top ids are in no order."""
    floats, wish = answer.view(np.float32), row.wish
    logsumexp = floats[1]
    ids = answer[NUM_FACTS : NUM_FACTS + wish.num_top]
    values = floats[NUM_FACTS + most_top : NUM_FACTS + most_top + wish.num_top]
    order = np.lexsort((ids, -values))
    further = floats[NUM_FACTS + 2 * most_top : NUM_FACTS + 2 * most_top + wish.ids.size]
    return joined(
        float(floats[0] - logsumexp),
        int(answer[2]),
        ids[order],
        values[order] - logsumexp,
        further - logsumexp,
    )


def _concatenated(columns: Sequence[Int32s]) -> Int32s:
    return np.concatenate(columns).astype(np.int32) if columns else np.zeros(0, np.int32)
