"""Takes a Deliver apart, columns first. Knows nothing of why tokens came."""

from collections.abc import Mapping

import numpy as np

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.frontend.record import RequestRecord


def apply_deliver(
    deliver: engine.Deliver, records: Mapping[int, RequestRecord]
) -> set[RequestRecord]:
    """Adds the rows, ends and starts to their records; returns the records that changed.

    Rows of unknown numbers are skipped: their streams ended. Raises TokensMissing, and ValueError
    or IndexError when the columns make no sense.
    """
    changed: set[RequestRecord] = set()
    numbers, indexes = _integers(deliver.numbers), _integers(deliver.output_indexes)
    firsts, tokens = _integers(deliver.first_token_indexes), _integers(deliver.tokens)
    if deliver.token_counts:
        at = 0
        counts = _integers(deliver.token_counts)
        for number, index, first, count in zip(numbers, indexes, firsts, counts, strict=True):
            record = records.get(number)
            if record is not None:
                record.outputs[index].take(first, tokens[at : at + count])
                changed.add(record)
            at += count
    else:
        for number, index, first, token in zip(numbers, indexes, firsts, tokens, strict=True):
            record = records.get(number)
            if record is not None:
                record.outputs[index].take_one(first, token)
                changed.add(record)
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


def _integers(column: bytes) -> list[int]:
    values: list[int] = np.frombuffer(column, "<i4").tolist()
    return values
