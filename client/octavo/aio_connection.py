"""The calls of an asyncio client: the twin of `connection.py`. Opened by the first call."""

from __future__ import annotations

import asyncio
import random
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import grpc
import grpc.aio

from octavo.aio_stream_connection import AsyncStreamCall, AsyncStreamConnection
from octavo.batch_request import BatchAnswer, BatchRequest
from octavo.channel import ClientSettings, open_aio_channel
from octavo.errors import ClientClosed, NotFound, ServiceError
from octavo.failures import service_error
from octavo.recovery import NextCall, Opening, Recovery
from octavo.retries import Deadline
from octavo.route import Route
from octavo.stream_request import StreamRequest
from octavo.trace_context import trace_metadata
from octavo.v1 import inference_pb2, inference_pb2_grpc

if TYPE_CHECKING:
    from octavo.v1.inference_pb2_grpc import InferenceServiceAsyncStub

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

_CANCEL_LIMIT_S = 2.0


class AioConnection:
    """One channel to each target, and all that runs on them; belongs to its first call's loop."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channels: tuple[grpc.aio.Channel, ...] = ()
        self._opened_stubs: tuple[InferenceServiceAsyncStub, ...] = ()
        self._streams: weakref.WeakSet[AsyncStreamConnection] = weakref.WeakSet()
        self._cancels: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.place = 0
        """The target that served last: where calls begin."""

    async def call(
        self,
        method: Callable[
            [InferenceServiceAsyncStub], grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT]
        ],
        request: RequestT,
        *,
        timeout_s: float | None,
        request_id: str = "",
        searches: bool = False,
    ) -> ResponseT:
        """The answer to one message; tried again as the retry policy says.

        With `searches`, what one target does not know is asked of the others.
        """
        deadline = self.deadline(timeout_s)
        route = self._route(deadline)
        metadata = (*self._settings.metadata, *trace_metadata())
        while True:
            try:
                response = await method(self._stubs()[route.place])(
                    request, timeout=deadline.remaining_s(), metadata=metadata
                )
            except grpc.RpcError as error:
                failure = self.failure(error, route.place, request_id)
            except asyncio.CancelledError:
                self._raise_if_closed_meanwhile()
                raise
            else:
                self.place = route.place
                return response
            if not (failure.is_retryable or (searches and isinstance(failure, NotFound))):
                raise failure
            await asyncio.sleep(route.move(failure))

    async def batch(
        self, request: BatchRequest, *, timeout_s: float | None
    ) -> AsyncIterator[BatchAnswer]:
        """The answers to a batch as they come; what broke is asked for again."""
        deadline = self.deadline(timeout_s)
        route, has_news = self._route(deadline), False
        metadata = (*self._settings.metadata, *trace_metadata())
        while not request.is_answered:
            call = self._stubs()[route.place].GenerateBatch(
                request.message(), timeout=deadline.remaining_s(), metadata=metadata
            )
            try:
                async for response in call:
                    self.place, has_news = route.place, True
                    yield request.absorb(response)
            except grpc.RpcError as error:
                failure = self.failure(error, route.place, "")
                if not (failure.is_retryable or failure.is_resumable):
                    raise failure from None
                if has_news:  # all attempts anew, as for a stream that broke
                    route, has_news = self._way_back(deadline), False
                await asyncio.sleep(route.move(failure))
            except asyncio.CancelledError:
                self._raise_if_closed_meanwhile()
                raise
            else:
                request.check_call_ended()
            finally:
                call.cancel()  # whoever reads no more wants none of the rest

    def open_stream(
        self, request: StreamRequest, *, timeout_s: float | None
    ) -> AsyncStreamConnection:
        """Begins a streamed answer."""
        deadline = self.deadline(timeout_s)
        recovery = Recovery(
            request.first_opening,
            route=self._route(deadline),
            num_targets=len(self._settings.targets),
            new_attempts=lambda: self._settings.reconnect.attempts(deadline, random=random.random),
            can_resume=request.can_resume,
        )
        calls = _AsyncStreamCalls(self, request, deadline)
        stream = AsyncStreamConnection(request.state, calls, recovery=recovery)
        self._streams.add(stream)
        return stream

    def open_call(
        self, step: NextCall, request: StreamRequest, timeout_s: float | None
    ) -> AsyncStreamCall:
        """Begins one call of a stream."""
        stub = self._stubs()[step.place]
        metadata = (*self._settings.metadata, *request.trace_metadata)
        if step.opening is Opening.ATTACH:
            return stub.Attach(request.attach(), timeout=timeout_s, metadata=metadata)
        return stub.Generate(request.generate(step.opening), timeout=timeout_s, metadata=metadata)

    def send_cancel(self, request_id: str, place: int) -> Awaitable[None]:
        """Tells a target that nobody wants a generation."""
        task = asyncio.get_running_loop().create_task(self._cancel(request_id, place))
        self._cancels.add(task)
        task.add_done_callback(self._cancels.discard)
        return asyncio.shield(task)

    def deadline(self, timeout_s: float | None) -> Deadline:
        """When a call that begins now must have ended; raises InvalidRequest, ClientClosed."""
        self._check_open()
        return Deadline(timeout_s, clock=asyncio.get_running_loop().time)

    def failure(self, error: grpc.RpcError, place: int, request_id: str) -> ServiceError:
        """The typed form of what a call raised; raises ClientClosed where that is the cause."""
        self._check_open()
        return service_error(error, target=self._settings.targets[place], request_id=request_id)

    async def aclose(self) -> None:
        """Cancels what runs, waits shortly until the service knows it, and closes the channels."""
        if self._is_closed:
            return
        for stream in list(self._streams):
            stream.leave(cancels=True)
        if self._cancels:
            await asyncio.wait(self._cancels, timeout=_CANCEL_LIMIT_S)
        self._is_closed = True
        for channel in self._channels:
            await channel.close()

    def _stubs(self) -> tuple[InferenceServiceAsyncStub, ...]:
        """The methods of each target's service, on channels of the running loop."""
        self._check_open()
        loop = asyncio.get_running_loop()
        if not self._opened_stubs:
            self._loop = loop
            self._channels = tuple(
                open_aio_channel(self._settings, target) for target in self._settings.targets
            )
            self._opened_stubs = tuple(
                inference_pb2_grpc.InferenceServiceStub(channel) for channel in self._channels
            )
        if loop is not self._loop:
            raise RuntimeError("this client belongs to another event loop: make one for each loop")
        return self._opened_stubs

    def _way_back(self, deadline: Deadline) -> Route:
        attempts = self._settings.reconnect.attempts(deadline, random=random.random)
        return Route(attempts, num_targets=len(self._settings.targets), place=self.place)

    def _route(self, deadline: Deadline) -> Route:
        attempts = self._settings.retry.attempts(deadline, random=random.random)
        return Route(attempts, num_targets=len(self._settings.targets), place=self.place)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("this client is closed")

    def _raise_if_closed_meanwhile(self) -> None:
        # Closing the channel looks to its callers as if their own tasks were cancelled.
        task = asyncio.current_task()
        if self._is_closed and (task is None or task.cancelling() == 0):
            raise ClientClosed("this client was closed during the call") from None

    async def _cancel(self, request_id: str, place: int) -> None:
        """Whether it found anything to cancel does not matter."""
        if self._is_closed:
            return
        try:
            await self._stubs()[place].Cancel(
                inference_pb2.CancelRequest(request_id=request_id),
                timeout=_CANCEL_LIMIT_S,
                metadata=self._settings.metadata,
            )
        except grpc.RpcError:
            return


class _AsyncStreamCalls:
    """What one stream asks of its client's connection."""

    def __init__(
        self, connection: AioConnection, request: StreamRequest, deadline: Deadline
    ) -> None:
        self._connection = connection
        self._request = request
        self._deadline = deadline

    def open(self, step: NextCall) -> AsyncStreamCall:
        return self._connection.open_call(step, self._request, self._deadline.remaining_s())

    def cancel(self, place: int) -> Awaitable[None]:
        return self._connection.send_cancel(self._request.state.request_id, place)

    def failure(self, error: grpc.RpcError, place: int) -> ServiceError:
        return self._connection.failure(error, place, self._request.state.request_id)

    def note_served(self, place: int) -> None:
        self._connection.place = place
