"""The calls of an asyncio client: the twin of `connection.py`. Opened by the first call."""

from __future__ import annotations

import asyncio
import random
import weakref
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

import grpc
import grpc.aio

from octavo.aio_stream import AsyncStreamCall, AsyncStreamConnection
from octavo.channel import ClientSettings, open_aio_channel
from octavo.errors import ClientClosed
from octavo.failures import service_error
from octavo.retries import Attempts, Deadline
from octavo.stream import StreamMessage
from octavo.v1 import inference_pb2, inference_pb2_grpc

if TYPE_CHECKING:
    from octavo.v1.inference_pb2_grpc import InferenceServiceAsyncStub

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
MessageT = TypeVar("MessageT", bound=StreamMessage)

_CANCEL_LIMIT_S = 2.0


class AioConnection:
    """One channel and everything that runs on it; belongs to the loop of its first call."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: grpc.aio.Channel | None = None
        self._stub: InferenceServiceAsyncStub | None = None
        self._streams: weakref.WeakSet[AsyncStreamConnection] = weakref.WeakSet()
        self._cancels: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def stub(self) -> InferenceServiceAsyncStub:
        """The service's methods, on a channel of the running loop."""
        if self._is_closed:
            raise ClientClosed("this client is closed")
        loop = asyncio.get_running_loop()
        if self._stub is None:
            self._loop = loop
            self._channel = open_aio_channel(self._settings)
            self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)
        if loop is not self._loop:
            raise RuntimeError("this client belongs to another event loop: make one for each loop")
        return self._stub

    async def call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT],
        request: RequestT,
        *,
        timeout_s: float | None,
        request_id: str = "",
    ) -> ResponseT:
        """The answer to one message; tried again as the retry policy says."""
        deadline, attempts = self._attempts(timeout_s)
        while True:
            try:
                return await method(
                    request, timeout=deadline.remaining_s(), metadata=self._settings.metadata
                )
            except grpc.RpcError as error:
                failure = service_error(error, target=self._settings.target, request_id=request_id)
            except asyncio.CancelledError:
                self._raise_if_closed_meanwhile()
                raise
            wait_s = attempts.wait_before_next_s(failure)
            if wait_s is None:
                raise failure
            await asyncio.sleep(wait_s)

    def open_stream(
        self,
        method: grpc.aio.UnaryStreamMultiCallable[RequestT, MessageT],
        request: RequestT,
        *,
        timeout_s: float | None,
        request_id: str,
    ) -> AsyncStreamConnection:
        """Begins a streamed answer."""
        deadline, attempts = self._attempts(timeout_s)

        def open_call(remaining_s: float | None) -> AsyncStreamCall:
            return method(request, timeout=remaining_s, metadata=self._settings.metadata)

        stream = AsyncStreamConnection(
            open_call,
            request_id=request_id,
            target=self._settings.target,
            deadline=deadline,
            attempts=attempts,
            send_cancel=self._send_cancel,
        )
        self._streams.add(stream)
        return stream

    async def aclose(self) -> None:
        """Cancels what runs, waits shortly until the service knows it, and closes the channel."""
        if self._is_closed:
            return
        for stream in list(self._streams):
            stream.leave(cancels=True)
        if self._cancels:
            await asyncio.wait(self._cancels, timeout=_CANCEL_LIMIT_S)
        self._is_closed = True
        if self._channel is not None:
            await self._channel.close()

    def _attempts(self, timeout_s: float | None) -> tuple[Deadline, Attempts]:
        deadline = Deadline(timeout_s, clock=asyncio.get_running_loop().time)
        return deadline, Attempts(self._settings.retry, deadline, random=random.random)

    def _raise_if_closed_meanwhile(self) -> None:
        # Closing the channel looks to its callers as if their own tasks were cancelled.
        task = asyncio.current_task()
        if self._is_closed and (task is None or task.cancelling() == 0):
            raise ClientClosed("this client was closed during the call") from None

    def _send_cancel(self, request_id: str) -> Awaitable[None]:
        task = asyncio.get_running_loop().create_task(self._cancel(request_id))
        self._cancels.add(task)
        task.add_done_callback(self._cancels.discard)
        return asyncio.shield(task)

    async def _cancel(self, request_id: str) -> None:
        """Whether it found anything to cancel does not matter."""
        if self._is_closed:
            return
        try:
            await self.stub.Cancel(
                inference_pb2.CancelRequest(request_id=request_id),
                timeout=_CANCEL_LIMIT_S,
                metadata=self._settings.metadata,
            )
        except grpc.RpcError:
            return
