"""News of the core to Deliver messages. Knows nothing of sockets or of what was told before.

One message per frontend and step. Rows stay columns from the core to the wire: no loop over them.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.core.news import OutputEnd, RequestStart, TokenRows
from scheduler_svc.engine.request_codec import encode_end


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
            ),
        )


def encode_news(
    rows: TokenRows | None, ends: Sequence[OutputEnd], starts: Sequence[RequestStart]
) -> engine.CoreToFrontend:
    """One step's news for one frontend."""
    message = engine.CoreToFrontend()
    out = message.deliver
    out.SetInParent()
    if rows is not None:
        out.numbers = rows.numbers.tobytes()
        out.output_indexes = rows.output_indexes.tobytes()
        out.first_token_indexes = rows.first_token_indexes.tobytes()
        out.tokens = rows.tokens.tobytes()
    _add_ends_and_starts(out, ends, starts)
    return message


def encode_missed(
    missed: Sequence[tuple[int, int, int, npt.NDArray[np.int32]]],
    ends: Sequence[OutputEnd],
    starts: Sequence[RequestStart],
) -> engine.CoreToFrontend:
    """What a frontend could not take, in one message.

    A row is (request number, output index, first token's index, tokens).
    """
    message = engine.CoreToFrontend()
    out = message.deliver
    out.SetInParent()
    if missed:
        numbers, output_indexes, first_indexes, tokens = zip(*missed, strict=True)
        out.numbers = np.array(numbers, np.int32).tobytes()
        out.output_indexes = np.array(output_indexes, np.int32).tobytes()
        out.first_token_indexes = np.array(first_indexes, np.int32).tobytes()
        out.token_counts = np.array([len(row) for row in tokens], np.int32).tobytes()
        out.tokens = np.concatenate(tokens).tobytes()
    _add_ends_and_starts(out, ends, starts)
    return message


def _add_ends_and_starts(
    out: engine.Deliver, ends: Sequence[OutputEnd], starts: Sequence[RequestStart]
) -> None:
    out.ends.extend(encode_end(end, number=end.number) for end in ends)
    for start in starts:
        out.starts.add(
            number=start.number,
            num_cached_tokens=start.num_cached_tokens,
            queued_us=start.queued_us,
        )
