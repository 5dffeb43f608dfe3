"""A generation's stream for asyncio code: the twin of `stream.py`."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

import grpc
import grpc.aio

from octavo.decoding import StreamState
from octavo.errors import DeadlineExceeded, InternalError, ServiceError
from octavo.failures import service_error
from octavo.results import Delta, Generation, StreamStart
from octavo.retries import Attempts, Deadline
from octavo.stream import StreamMessage
from octavo.v1 import inference_pb2


class AsyncStreamCall(Protocol):
    """A running call that streams messages."""

    def read(self) -> Awaitable[StreamMessage | object]:
        """The next message, or `grpc.aio.EOF`; raises grpc.RpcError when the call failed."""

    def cancel(self) -> bool:
        """Ends the call at once."""


class AsyncStreamConnection:
    """One stream's call: opened again while nothing was received, left in exactly one way.

    Outlives its AsyncStream, so that a stream that is dropped can still be cancelled.
    """

    def __init__(
        self,
        open_call: Callable[[float | None], AsyncStreamCall],
        *,
        request_id: str,
        target: str,
        deadline: Deadline,
        attempts: Attempts,
        send_cancel: Callable[[str], Awaitable[None]],
    ) -> None:
        self._open_call = open_call
        self._request_id = request_id
        self._target = target
        self._deadline = deadline
        self._attempts = attempts
        self._send_cancel = send_cancel
        self._has_message = False
        self._has_failed = False
        self._left = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._call = open_call(deadline.remaining_s())
        self.has_ended = False

    async def next_chunk(self) -> inference_pb2.StreamChunk | None:
        """The next chunk; None after the end. Raises ServiceError when the stream breaks."""
        while not self._is_over():
            try:
                message = await self._call.read()
            except grpc.RpcError as error:
                await self._recover(
                    service_error(error, target=self._target, request_id=self._request_id)
                )
            except asyncio.CancelledError:
                if self._was_left_by_another_task():
                    return None
                self.leave(cancels=True)
                raise
            else:
                if message is grpc.aio.EOF:
                    self.has_ended = True
                    continue
                self._has_message = True
                return message.chunk  # type: ignore[union-attr]  # EOF is an object
        return None

    def leave(self, *, cancels: bool) -> Awaitable[None] | None:
        """Ends the call now; with `cancels`, tells the service that nobody wants the rest."""
        if self._is_over():
            return None
        self._left.set()
        cancel = self._send_cancel(self._request_id) if cancels else None
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

    async def _recover(self, failure: ServiceError) -> None:
        """Opens the call again, or raises."""
        if self._left.is_set():
            return
        wait_s = None if self._has_message else self._attempts.wait_before_next_s(failure)
        if wait_s is None:
            self._has_failed = True
            if isinstance(failure, DeadlineExceeded):
                self._send_cancel(self._request_id)  # else it is kept for a reader to come
            raise failure
        await self._wait(wait_s)
        if not self._left.is_set():
            self._call = self._open_call(self._deadline.remaining_s())

    async def _wait(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._left.wait()
        except TimeoutError:
            return


class AsyncStream:
    """Deltas of one generation, as they come: iterate over it with `async for`, once.

    Leaving it early (`aclose()`, the end of an `async with` block, cancelling the task that reads,
    or dropping it) cancels the generation on the service; `detach()` leaves it running.
    """

    def __init__(
        self, connection: AsyncStreamConnection, state: StreamState, *, owner: object
    ) -> None:
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

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        while not self._waiting:
            chunk = await self._connection.next_chunk()
            if chunk is None:
                if self._connection.has_ended:
                    self._state.check_ended()
                raise StopAsyncIteration
            self._absorb(chunk)
        return self._waiting.popleft()

    async def result(self) -> Generation:
        """Reads to the end and returns everything that this stream brought."""
        async for _ in self:
            pass
        return self._state.generation()

    def partial(self) -> Generation:
        """What this stream brought so far; waits for nothing."""
        return self._state.generation()

    async def aclose(self) -> None:
        """Cancels the generation unless it has ended; returns when the service knows it."""
        cancel = self._connection.leave(cancels=True)
        if cancel is not None:
            await cancel

    def detach(self) -> None:
        """Stops reading and lets the generation run on, for `attach` within `keep_for_s`."""
        self._connection.leave(cancels=False)

    def _absorb(self, chunk: inference_pb2.StreamChunk) -> None:
        try:
            self._waiting.extend(self._state.absorb(chunk))
        except InternalError:
            self._connection.leave(cancels=True)
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
