"""News of the core to Deliver messages. Knows nothing of sockets or of what was told before.

One message per frontend and step. Rows stay columns from the core to the wire: no loop over them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.core.news import OutputEnd, OutputSoFar, RequestStart, TokenRows
from scheduler_svc.core.records import WORD_BYTES, PromptRecords
from scheduler_svc.engine.request_codec import encode_end


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnerNews:
    """One owner's part of the news."""

    rows: TokenRows | None = None
    ends: list[OutputEnd] = field(default_factory=list)
    starts: list[RequestStart] = field(default_factory=list)
    prompt_records: list[PromptRecords] = field(default_factory=list)


def split_rows(rows: TokenRows) -> Iterator[tuple[int, TokenRows]]:
    """The rows of each owner that has some."""
    if not len(rows.owners):
        return
    first = rows.owners[0]
    if (rows.owners == first).all():
        yield int(first), rows
        return
    for owner in np.unique(rows.owners):
        mine = rows.owners == owner
        yield (
            int(owner),
            TokenRows(
                owners=rows.owners[mine],
                numbers=rows.numbers[mine],
                output_indexes=rows.output_indexes[mine],
                first_token_indexes=rows.first_token_indexes[mine],
                tokens=rows.tokens[mine],
                records=_chosen(rows.records, mine),
            ),
        )


def encode_news(news: OwnerNews) -> engine.CoreToFrontend:
    """One step's news for one frontend."""
    message = engine.CoreToFrontend()
    out = message.deliver
    out.SetInParent()
    rows = news.rows
    if rows is not None:
        out.numbers = rows.numbers.tobytes()
        out.output_indexes = rows.output_indexes.tobytes()
        out.first_token_indexes = rows.first_token_indexes.tobytes()
        out.tokens = rows.tokens.tobytes()
        _add_records(out, rows.records)
    _add_rest(out, news)
    return message


def encode_missed(
    missed: Sequence[tuple[int, int, int, OutputSoFar]], rest: OwnerNews
) -> engine.CoreToFrontend:
    """What a frontend could not take, in one message.

    A row is (request number, output index, first token's index, what follows).
    """
    message = engine.CoreToFrontend()
    out = message.deliver
    out.SetInParent()
    if missed:
        numbers, output_indexes, first_indexes, outputs = zip(*missed, strict=True)
        tokens = [output.tokens for output in outputs]
        out.numbers = np.array(numbers, np.int32).tobytes()
        out.output_indexes = np.array(output_indexes, np.int32).tobytes()
        out.first_token_indexes = np.array(first_indexes, np.int32).tobytes()
        out.token_counts = np.array([len(row) for row in tokens], np.int32).tobytes()
        out.tokens = np.concatenate(tokens).tobytes()
        _add_records(out, [output.records for output in outputs])
    _add_rest(out, rest)
    return message


def _add_rest(out: engine.Deliver, news: OwnerNews) -> None:
    out.ends.extend(encode_end(end, number=end.number) for end in news.ends)
    for start in news.starts:
        out.starts.add(
            number=start.number,
            num_cached_tokens=start.num_cached_tokens,
            queued_us=start.queued_us,
        )
    for stretch in news.prompt_records:
        out.prompt_records.add(
            number=stretch.number,
            first_position=stretch.first_position,
            records=stretch.records,
        )


def _chosen(
    records: tuple[bytes, ...] | None, mine: npt.NDArray[np.bool_]
) -> tuple[bytes, ...] | None:
    if records is None:
        return None
    return tuple(records[row] for row in np.flatnonzero(mine).tolist())


def _add_records(out: engine.Deliver, records: Sequence[bytes] | None) -> None:
    if records and any(records):
        words = [len(record) // WORD_BYTES for record in records]
        out.record_words = np.array(words, np.int32).tobytes()
        out.records = b"".join(records)
