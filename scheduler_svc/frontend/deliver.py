"""Takes a Deliver apart, columns first. Knows nothing of why tokens came."""

from collections.abc import Mapping, Sequence

import numpy as np

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.frontend.record import RequestRecord
from scheduler_svc.frontend.told_tokens import WORD_BYTES


def apply_deliver(
    deliver: engine.Deliver, records: Mapping[int, RequestRecord]
) -> set[RequestRecord]:
    """Adds the rows, ends and starts to their records; returns the records that changed.

    Rows of unknown numbers are skipped: their streams ended. Raises TokensMissing, and ValueError
    or IndexError when the columns make no sense.
    """
    for stretch in deliver.prompt_records:
        record = records.get(stretch.number)
        if record is not None:
            record.take_prompt_records(stretch.first_position, stretch.records)
    changed = _apply_rows(deliver, records)
    for end in deliver.ends:
        record = records.get(end.number)
        if record is not None:
            record.outputs[end.output_index].note_end(end)
            changed.add(record)
    for start in deliver.starts:
        record = records.get(start.number)
        if record is not None:
            record.num_cached_tokens = start.num_cached_tokens
            record.queued_s = start.queued_us / 1e6
    return changed


def _apply_rows(
    deliver: engine.Deliver, records: Mapping[int, RequestRecord]
) -> set[RequestRecord]:
    changed: set[RequestRecord] = set()
    numbers, indexes = _integers(deliver.numbers), _integers(deliver.output_indexes)
    firsts, tokens = _integers(deliver.first_token_indexes), _integers(deliver.tokens)
    told = _told(deliver, num_rows=len(numbers))
    if not deliver.token_counts:
        for number, index, first, token, of_row in zip(
            numbers, indexes, firsts, tokens, told, strict=True
        ):
            record = records.get(number)
            if record is not None:
                record.outputs[index].take_one(first, token, of_row)
                changed.add(record)
        return changed
    at = 0
    counts = _integers(deliver.token_counts)
    for number, index, first, count, of_row in zip(
        numbers, indexes, firsts, counts, told, strict=True
    ):
        record = records.get(number)
        if record is not None:
            record.outputs[index].take(first, tokens[at : at + count], of_row)
            changed.add(record)
        at += count
    return changed


def _told(deliver: engine.Deliver, *, num_rows: int) -> Sequence[bytes]:
    """The records of each row."""
    if not deliver.record_words:
        return (b"",) * num_rows
    ends = np.cumsum(np.frombuffer(deliver.record_words, "<i4")) * WORD_BYTES
    if ends.size != num_rows or ends[-1] != len(deliver.records):
        raise ValueError("the records' sizes do not fit the rows")
    return [
        deliver.records[begin:end]
        for begin, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)
    ]


def _integers(column: bytes) -> list[int]:
    values: list[int] = np.frombuffer(column, "<i4").tolist()
    return values
