"""The calls of one stream for asyncio code: the twin of `stream_connection.py`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from typing import Protocol

import grpc
import grpc.aio

from octavo.errors import DeadlineExceeded, InternalError, ServiceError
from octavo.failures import was_accepted
from octavo.recovery import NextCall, Recovery
from octavo.results import Delta
from octavo.stream_connection import StreamMessage
from octavo.stream_state import OtherReplica, StreamState
from octavo.v1 import inference_pb2

_LOG = logging.getLogger(__name__)


class AsyncStreamCall(Protocol):
    """A running call that streams messages."""

    def read(self) -> Awaitable[StreamMessage | object]:
        """The next message, or `grpc.aio.EOF`; raises grpc.RpcError when the call failed."""

    def cancel(self) -> bool:
        """Ends the call at once."""


class AsyncStreamCalls(Protocol):
    """What a stream asks of its client; `place` is a target's index among the client's."""

    def open(self, step: NextCall) -> AsyncStreamCall:
        """Begins a call."""

    def cancel(self, place: int) -> Awaitable[None]:
        """Tells the service that nobody wants the generation."""

    def failure(self, error: grpc.RpcError, place: int) -> ServiceError:
        """The typed form of what a call raised."""

    def note_served(self, place: int) -> None:
        """A target is well: calls to come may begin there."""


class AsyncStreamConnection:
    """One stream's calls, one after the other; left in exactly one way."""

    def __init__(self, state: StreamState, calls: AsyncStreamCalls, *, recovery: Recovery) -> None:
        self._state = state
        self._calls = calls
        self._recovery = recovery
        self._has_failed = False
        self._left = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._step = recovery.first
        self._call = calls.open(self._step)
        self.has_ended = False

    @property
    def num_calls(self) -> int:
        """Calls opened so far."""
        return self._recovery.num_calls

    async def next_deltas(self) -> tuple[Delta, ...] | None:
        """What comes next; None after the end. Raises ServiceError when the stream is lost."""
        try:
            return await self._next_deltas()
        except asyncio.CancelledError:
            if self._was_left_by_another_task():
                return None
            self.leave(cancels=True)
            raise

    def leave(self, *, cancels: bool) -> Awaitable[None] | None:
        """Ends the stream now; with `cancels`, tells the service that nobody wants the rest."""
        if self._is_over():
            return None
        self._left.set()
        cancel = self._calls.cancel(self._step.place) if cancels else None
        self._call.cancel()
        return cancel

    def leave_from_anywhere(self) -> None:
        """The same for the garbage collector, which runs in any thread and at any time."""
        if self._is_over():
            return
        with suppress(RuntimeError):  # the loop is closed, and with it the connection
            self._loop.call_soon_threadsafe(lambda: self.leave(cancels=True))

    def _is_over(self) -> bool:
        return self.has_ended or self._has_failed or self._left.is_set()

    def _was_left_by_another_task(self) -> bool:
        task = asyncio.current_task()
        return self._left.is_set() and (task is None or task.cancelling() == 0)

    async def _next_deltas(self) -> tuple[Delta, ...] | None:
        while not self._is_over():
            try:
                message = await self._call.read()
            except grpc.RpcError as error:
                await self._recover(error)
                continue
            if message is grpc.aio.EOF:
                self.has_ended = True
                self._state.check_ended()
                continue
            chunk = message.chunk  # type: ignore[union-attr]  # EOF is an object
            deltas = await self._absorb(chunk)
            if deltas:
                return deltas
        return None

    async def _absorb(self, chunk: inference_pb2.StreamChunk) -> tuple[Delta, ...]:
        try:
            deltas = self._state.absorb(chunk)
        except InternalError:
            self.leave(cancels=True)
            raise
        except OtherReplica:
            self._call.cancel()
            await self._go_on(self._recovery.after_other_replica())
            return ()
        self._recovery.note_message(has_news=bool(deltas))
        self._calls.note_served(self._step.place)
        return deltas

    async def _recover(self, error: grpc.RpcError) -> None:
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
        await self._go_on(step)

    async def _go_on(self, step: NextCall) -> None:
        await self._wait(step.wait_s)
        if self._left.is_set():
            return
        self._state.expect(step.opening)
        self._step = step
        self._call = self._calls.open(step)

    async def _wait(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._left.wait()
        except TimeoutError:
            return
