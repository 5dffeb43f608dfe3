"""A generation's stream for blocking code. Knows nothing of prompts, calls or channels."""

from __future__ import annotations

import weakref
from collections import deque
from types import TracebackType
from typing import Self

from octavo.errors import ServiceError
from octavo.results import Delta, Generation, StreamStart
from octavo.stream_connection import StreamConnection
from octavo.stream_state import StreamState


class Stream:
    """Deltas of one generation, as they come: iterate over it, once.

    A connection, a frontend or a whole replica that is lost meanwhile does not show: the stream
    goes on behind its last delta. Only when that fails a ServiceError is raised, whose `received`
    holds everything up to there.

    Leaving it early (`close()`, the end of a `with` block, or dropping it) cancels the generation
    on the service; `detach()` leaves it running. One thread iterates; any may close.
    """

    def __init__(self, connection: StreamConnection, state: StreamState, *, owner: object) -> None:
        self._connection = connection
        self._state = state
        self._waiting: deque[Delta] = deque()
        self._owner = owner  # a client that nobody else holds lives as long as its stream
        weakref.finalize(self, connection.leave_from_anywhere)

    @property
    def request_id(self) -> str:
        """The generation's name, for attach and cancel."""
        return self._state.request_id

    @property
    def start(self) -> StreamStart | None:
        """Facts fixed when the generation began; None before the first delta.

        `start.replica` is the one that the latest delta came from.
        """
        return self._state.start

    @property
    def num_reconnects(self) -> int:
        """How many calls were opened after the first one."""
        return self._connection.num_calls - 1

    @property
    def has_ended(self) -> bool:
        """Whether everything came; False while it goes on, and for a stream left early."""
        return self._connection.has_ended

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delta:
        while not self._waiting:
            try:
                deltas = self._connection.next_deltas()
            except ServiceError as error:
                error.received = self._state.generation()
                raise
            if deltas is None:
                raise StopIteration
            self._waiting.extend(deltas)
        return self._waiting.popleft()

    def result(self) -> Generation:
        """Reads to the end and returns everything that this stream brought."""
        for _ in self:
            pass
        return self._state.generation()

    def partial(self) -> Generation:
        """What this stream brought so far; waits for nothing."""
        return self._state.generation()

    def close(self) -> None:
        """Cancels the generation unless it has ended; returns when the service knows it."""
        cancel = self._connection.leave(cancels=True)
        if cancel is not None:
            cancel.wait()

    def detach(self) -> None:
        """Stops reading and lets the generation run on, for `attach` within `keep_for_s`."""
        self._connection.leave(cancels=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
