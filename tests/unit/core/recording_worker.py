"""A worker that tells records of a fixed pattern, and readers that keep them. For tests.

A record's words are the token, its position, then zeros. How many there are the worker learns from
the rules, which the core hands on unread: here they are the number itself.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from scheduler_svc.core.news import NO_OWNER, StepNews
from scheduler_svc.core.plan import StepPlan, StepResult
from scheduler_svc.core.records import RecordWishes
from scheduler_svc.core.request import NewRequest, SamplingParams
from tests.unit.core.paged_worker import PagedWorker
from tests.unit.core.replica import Replica

VECTOR = np.array([7, 8, 9], np.int32).tobytes()


def record(token: int, position: int, num_words: int) -> bytes:
    """The pattern."""
    return np.array([token, position, *[0] * (num_words - 2)], np.int32).tobytes()


def expected_records(new: NewRequest, tokens: list[int]) -> bytes:
    """Records of generated tokens."""
    first, words = len(new.prompt), new.records.token_words
    if not words:
        return b""
    return b"".join(record(token, first + i, words) for i, token in enumerate(tokens))


def expected_prompt_records(new: NewRequest) -> bytes:
    """All records of a prompt."""
    first, words = new.records.prompt_from, new.records.prompt_words
    return b"".join(
        record(int(new.prompt[position]), position, words)
        for position in range(first, len(new.prompt))
    )


class RecordingWorker(PagedWorker):
    """Adds records to what its base computes."""

    def run(self, plan: StepPlan) -> StepResult:
        """The result, with records."""
        result = super().run(plan)
        rows = self._rows_of(plan)
        token_records, pooled = [], []
        failed = set(result.failed_rows.tolist())
        for row, (number, _, end, samples) in enumerate(rows):
            slot = self.slots[number]
            if not samples or row in failed:
                continue
            if slot.start.pooling is not None:
                pooled.append(VECTOR)
            elif slot.start.sampling.rules:
                assert slot.last_token is not None
                token_records.append(record(slot.last_token, end, slot.start.sampling.rules[0]))
        return replace(
            result,
            token_records=b"".join(token_records),
            prompt_records=b"".join(self._prompt_records(*row[:3]) for row in rows),
            pooled=b"".join(pooled),
        )

    def _rows_of(self, plan: StepPlan) -> list[tuple[int, int, int, bool]]:
        """Slot, first position, end, whether it samples."""
        rows = []
        for row, number in enumerate(plan.slots.tolist()):
            end = self.slots[number].next_position
            chunk = row - plan.num_decode_rows
            count = int(plan.chunk_num_tokens[chunk]) if chunk >= 0 else 1
            samples = bool(plan.chunk_samples[chunk]) if chunk >= 0 else True
            rows.append((number, end - count, end, samples))
        return rows

    def _prompt_records(self, number: int, first: int, end: int) -> bytes:
        start = self.slots[number].start
        if not start.prompt_records_from:
            return b""
        history = np.frombuffer(start.history, np.int32)
        positions = range(
            max(first + 1, start.prompt_records_from), min(end, start.num_prompt_tokens - 1) + 1
        )
        words = 2 + 2 * start.num_prompt_top
        return b"".join(record(int(history[place]), place, words) for place in positions)


class RecordingReplica(Replica):
    """A replica whose readers keep records, by output and by request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.records: dict[tuple[int, int, int], bytes] = {}
        self.prompt_records: dict[tuple[int, int], bytes] = {}
        self.wishes: dict[tuple[int, int], NewRequest] = {}
        super().__init__(*args, **kwargs)
        self.worker = RecordingWorker(self.limits)

    def add_recorded(
        self, prompt: Any = None, *, wishes: RecordWishes, **fields: Any
    ) -> NewRequest:
        """Submits a request that wants records."""
        words = wishes.token_words
        sampling = SamplingParams(
            seed=self.num_submitted + 1, rules=bytes([words]) if words else b""
        )
        new = self.new(prompt, **{"records": wishes, "sampling": sampling, **fields})
        self.wishes[new.owner, new.number] = new
        self.submit(new)
        return new

    def read(self, news: StepNews) -> None:
        """Keeps records, then the rest."""
        for stretch in news.prompt_records:
            if stretch.owner == NO_OWNER:
                continue
            key = stretch.owner, stretch.number
            new, known = self.wishes[key], self.prompt_records.get(key, b"")
            words = 4 * new.records.prompt_words
            assert stretch.first_position == new.records.prompt_from + len(known) // words
            tokens = [r.tokens for k, r in self.readers.items() if k[:2] == key]
            assert not any(tokens), "a token came before the prompt's records"
            self.prompt_records[key] = known + stretch.records
        rows = news.rows
        for owner, number, index, told in zip(
            rows.owners.tolist(),
            rows.numbers.tolist(),
            rows.output_indexes.tolist(),
            rows.records or (),
            strict=False,
        ):
            key3 = owner, number, index
            self.records[key3] = self.records.get(key3, b"") + told
        super().read(news)
