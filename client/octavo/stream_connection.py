"""The calls of one stream for blocking code: what broke is opened again, as `recovery.py` says.

Outlives its Stream, so that a stream that is dropped can still be cancelled.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

import grpc

from octavo.errors import DeadlineExceeded, InternalError, ServiceError
from octavo.failures import was_accepted
from octavo.recovery import NextCall, Recovery
from octavo.results import Delta
from octavo.stream_state import OtherReplica, StreamState
from octavo.v1 import inference_pb2

_LOG = logging.getLogger(__name__)


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


class StreamCalls(Protocol):
    """What a stream asks of its client; `place` is a target's index among the client's."""

    def open(self, step: NextCall) -> StreamCall:
        """Begins a call."""

    def cancel(self, place: int) -> CancelOnItsWay:
        """Tells the service that nobody wants the generation."""

    def failure(self, error: grpc.RpcError, place: int) -> ServiceError:
        """The typed form of what a call raised."""

    def note_served(self, place: int) -> None:
        """A target is well: calls to come may begin there."""


class StreamConnection:
    """One stream's calls, one after the other; left in exactly one way."""

    def __init__(
        self,
        state: StreamState,
        calls: StreamCalls,
        *,
        recovery: Recovery,
        hand_over: Callable[[StreamConnection], None],
    ) -> None:
        self._state = state
        self._calls = calls
        self._recovery = recovery
        self._hand_over = hand_over
        self._has_failed = False
        self._left = threading.Event()
        self._opening = threading.Lock()
        self._step = recovery.first
        self._call = calls.open(self._step)
        self.has_ended = False

    @property
    def num_calls(self) -> int:
        """Calls opened so far."""
        return self._recovery.num_calls

    def next_deltas(self) -> tuple[Delta, ...] | None:
        """What comes next; None after the end. Raises ServiceError when the stream is lost."""
        while not self._is_over():
            try:
                chunk = next(self._call).chunk
            except StopIteration:
                self.has_ended = True
                self._state.check_ended()
            except grpc.RpcError as error:
                self._recover(error)
            else:
                deltas = self._absorb(chunk)
                if deltas:
                    return deltas
        return None

    def leave(self, *, cancels: bool) -> CancelOnItsWay | None:
        """Ends the stream now; with `cancels`, tells the service that nobody wants the rest."""
        if self._is_over():
            return None
        with self._opening:
            self._left.set()
        # The Cancel goes first: while the process ends, gRPC can start no thread for a new call.
        cancel = self._calls.cancel(self._step.place) if cancels else None
        self._call.cancel()
        return cancel

    def leave_from_anywhere(self) -> None:
        """The same for the garbage collector, which may run where gRPC itself holds a lock."""
        if not self._is_over():
            self._hand_over(self)

    def _is_over(self) -> bool:
        return self.has_ended or self._has_failed or self._left.is_set()

    def _absorb(self, chunk: inference_pb2.StreamChunk) -> tuple[Delta, ...]:
        try:
            deltas = self._state.absorb(chunk)
        except InternalError:
            self.leave(cancels=True)
            raise
        except OtherReplica:
            self._call.cancel()
            self._go_on(self._recovery.after_other_replica())
            return ()
        self._recovery.note_message(has_news=bool(deltas))
        self._calls.note_served(self._step.place)
        return deltas

    def _recover(self, error: grpc.RpcError) -> None:
        """Opens the next call, or raises."""
        if self._left.is_set():
            return
        failure = self._calls.failure(error, self._step.place)
        if self._state.is_complete and failure.is_resumable:
            self.has_ended = True
            return
        try:
            step = self._recovery.after(failure, was_accepted=was_accepted(error))
        except ServiceError as final:
            self._has_failed = True
            if isinstance(final, DeadlineExceeded):
                self._calls.cancel(self._step.place)  # else it is kept for a reader to come
            raise
        _LOG.info("stream %s: %s after %s", self._state.request_id, step.opening.name, failure)
        self._go_on(step)

    def _go_on(self, step: NextCall) -> None:
        if self._left.wait(step.wait_s):
            return
        with self._opening:  # nothing is opened once the stream was left
            if self._left.is_set():
                return
            self._state.expect(step.opening)
            self._step = step
            self._call = self._calls.open(step)
