"""A generation's stream for blocking code. Knows nothing of prompts or of channels."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

import grpc

from octavo.decoding import StreamState
from octavo.errors import DeadlineExceeded, InternalError, ServiceError
from octavo.failures import service_error
from octavo.results import Delta, Generation, StreamStart
from octavo.retries import Attempts, Deadline
from octavo.v1 import inference_pb2


class StreamMessage(Protocol):
    """A message of Generate or Attach."""

    @property
    def chunk(self) -> inference_pb2.StreamChunk:
        """The news."""


class StreamCall(Protocol):
    """A running call that streams messages."""

    def __next__(self) -> StreamMessage:
        """Waits for the next message; raises StopIteration or grpc.RpcError at the end."""

    def cancel(self) -> bool:
        """Ends the call at once, from any thread."""


class CancelOnItsWay(Protocol):
    """A Cancel that was sent."""

    def wait(self) -> None:
        """Returns when it is answered or failed, after a short limit at the latest."""


class StreamConnection:
    """One stream's call: opened again while nothing was received, left in exactly one way.

    Outlives its Stream, so that a Stream that is dropped can still be cancelled.
    """

    def __init__(
        self,
        open_call: Callable[[float | None], StreamCall],
        *,
        request_id: str,
        target: str,
        deadline: Deadline,
        attempts: Attempts,
        send_cancel: Callable[[str], CancelOnItsWay],
        hand_over: Callable[[StreamConnection], None],
    ) -> None:
        self._open_call = open_call
        self._request_id = request_id
        self._target = target
        self._deadline = deadline
        self._attempts = attempts
        self._send_cancel = send_cancel
        self._hand_over = hand_over
        self._has_message = False
        self._has_failed = False
        self._left = threading.Event()
        self._call = open_call(deadline.remaining_s())
        self.has_ended = False

    def next_chunk(self) -> inference_pb2.StreamChunk | None:
        """The next chunk; None after the end. Raises ServiceError when the stream breaks."""
        while not self._is_over():
            try:
                chunk = next(self._call).chunk
            except StopIteration:
                self.has_ended = True
            except grpc.RpcError as error:
                self._recover(
                    service_error(error, target=self._target, request_id=self._request_id)
                )
            else:
                self._has_message = True
                return chunk
        return None

    def leave(self, *, cancels: bool) -> CancelOnItsWay | None:
        """Ends the call now; with `cancels`, tells the service that nobody wants the rest."""
        if self._is_over():
            return None
        self._left.set()
        # The Cancel goes first: while the process ends, gRPC can start no thread for a new call.
        cancel = self._send_cancel(self._request_id) if cancels else None
        self._call.cancel()
        return cancel

    def leave_from_anywhere(self) -> None:
        """The same for the garbage collector, which may run where gRPC itself holds a lock."""
        if not self._is_over():
            self._hand_over(self)

    def _is_over(self) -> bool:
        return self.has_ended or self._has_failed or self._left.is_set()

    def _recover(self, failure: ServiceError) -> None:
        """Opens the call again, or raises."""
        if self._left.is_set():
            return
        wait_s = None if self._has_message else self._attempts.wait_before_next_s(failure)
        if wait_s is None:
            self._has_failed = True
            if isinstance(failure, DeadlineExceeded):
                self._send_cancel(self._request_id)  # else it is kept for a reader to come
            raise failure
        if not self._left.wait(wait_s):
            self._call = self._open_call(self._deadline.remaining_s())


class Stream:
    """Deltas of one generation, as they come: iterate over it, once.

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
        """Facts fixed when the generation began; None before the first delta."""
        return self._state.start

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delta:
        while not self._waiting:
            chunk = self._connection.next_chunk()
            if chunk is None:
                if self._connection.has_ended:
                    self._state.check_ended()
                raise StopIteration
            self._absorb(chunk)
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

    def _absorb(self, chunk: inference_pb2.StreamChunk) -> None:
        try:
            self._waiting.extend(self._state.absorb(chunk))
        except InternalError:
            self._connection.leave(cancels=True)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
