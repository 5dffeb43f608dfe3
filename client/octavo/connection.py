"""The calls of a blocking client: channels, targets, retries, deadlines. Knows no arguments."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import grpc

from octavo.batch_request import BatchAnswer, BatchRequest
from octavo.channel import ClientSettings, open_channel
from octavo.errors import ClientClosed, NotFound, ServiceError
from octavo.failures import service_error
from octavo.recovery import NextCall, Opening, Recovery
from octavo.retries import Deadline
from octavo.route import Route
from octavo.stream_connection import StreamCall, StreamConnection
from octavo.stream_keeper import StreamKeeper
from octavo.stream_request import StreamRequest
from octavo.trace_context import trace_metadata
from octavo.v1 import inference_pb2, inference_pb2_grpc

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
Stub = inference_pb2_grpc.InferenceServiceStub

_CANCEL_LIMIT_S = 2.0


class Connection:
    """One channel to each target, and everything that runs on them."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._channels = tuple(open_channel(settings, target) for target in settings.targets)
        self._stubs = tuple(Stub(channel) for channel in self._channels)
        self._streams = StreamKeeper()
        self._cancels: set[SentCancel] = set()
        self._is_closed = False
        self.place = 0
        """The target that served last: where calls begin."""

    def call(
        self,
        method: Callable[[Stub], grpc.UnaryUnaryMultiCallable[RequestT, ResponseT]],
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
            future = method(self._stubs[route.place]).future(
                request, timeout=deadline.remaining_s(), metadata=metadata
            )
            try:
                response = future.result()
            except grpc.RpcError as error:
                failure = self.failure(error, route.place, request_id)
            except BaseException:  # such as Ctrl-C: nobody waits for the answer any more
                future.cancel()
                raise
            else:
                self.place = route.place
                return response
            if not (failure.is_retryable or (searches and isinstance(failure, NotFound))):
                raise failure
            time.sleep(route.move(failure))

    def open_stream(self, request: StreamRequest, *, timeout_s: float | None) -> StreamConnection:
        """Begins a streamed answer."""
        deadline = self.deadline(timeout_s)
        recovery = Recovery(
            request.first_opening,
            route=self._route(deadline),
            num_targets=len(self._stubs),
            new_attempts=lambda: self._settings.reconnect.attempts(deadline, random=random.random),
            can_resume=request.can_resume,
        )
        stream = StreamConnection(
            request.state,
            _StreamCalls(self, request, deadline),
            recovery=recovery,
            hand_over=self._streams.leave_soon,
        )
        self._streams.add(stream)
        return stream

    def batch(self, request: BatchRequest, *, timeout_s: float | None) -> Iterator[BatchAnswer]:
        """The answers to a batch as they come; what broke is asked for again."""
        deadline = self.deadline(timeout_s)
        route, has_news = self._route(deadline), False
        metadata = (*self._settings.metadata, *trace_metadata())
        while not request.is_answered:
            call = self._stubs[route.place].GenerateBatch(
                request.message(), timeout=deadline.remaining_s(), metadata=metadata
            )
            try:
                for response in call:
                    self.place, has_news = route.place, True
                    yield request.absorb(response)
            except grpc.RpcError as error:
                failure = self.failure(error, route.place, "")
                if not (failure.is_retryable or failure.is_resumable):
                    raise failure from None
                if has_news:  # all attempts anew, as for a stream that broke
                    route, has_news = self._way_back(deadline), False
                time.sleep(route.move(failure))
            else:
                request.check_call_ended()
            finally:
                call.cancel()  # whoever reads no more wants none of the rest

    def open_call(
        self, step: NextCall, request: StreamRequest, timeout_s: float | None
    ) -> StreamCall:
        """Begins one call of a stream."""
        self._check_open()
        stub = self._stubs[step.place]
        metadata = (*self._settings.metadata, *request.trace_metadata)
        if step.opening is Opening.ATTACH:
            return stub.Attach(request.attach(), timeout=timeout_s, metadata=metadata)
        return stub.Generate(request.generate(step.opening), timeout=timeout_s, metadata=metadata)

    def send_cancel(self, request_id: str, place: int) -> SentCancel:
        """Tells a target that nobody wants a generation."""
        if self._is_closed:  # its streams were cancelled before
            return SentCancel(None)
        future = self._stubs[place].Cancel.future(
            inference_pb2.CancelRequest(request_id=request_id),
            timeout=_CANCEL_LIMIT_S,
            metadata=self._settings.metadata,
        )
        cancel = SentCancel(future)
        self._cancels.add(cancel)
        future.add_done_callback(lambda _: self._cancels.discard(cancel))
        return cancel

    def deadline(self, timeout_s: float | None) -> Deadline:
        """When a call that begins now must have ended; raises InvalidRequest, ClientClosed."""
        self._check_open()
        return Deadline(timeout_s, clock=time.monotonic)

    def failure(self, error: grpc.RpcError, place: int, request_id: str) -> ServiceError:
        """The typed form of what a call raised; raises ClientClosed where that is the cause."""
        self._check_open()
        return service_error(error, target=self._settings.targets[place], request_id=request_id)

    def close(self) -> None:
        """Cancels what runs, waits shortly until the service knows it, and closes the channels."""
        if self._is_closed:
            return
        self._streams.leave_all()
        for cancel in list(self._cancels):
            cancel.wait()
        self._is_closed = True
        for channel in self._channels:
            channel.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("this client is closed")

    def _way_back(self, deadline: Deadline) -> Route:
        attempts = self._settings.reconnect.attempts(deadline, random=random.random)
        return Route(attempts, num_targets=len(self._stubs), place=self.place)

    def _route(self, deadline: Deadline) -> Route:
        attempts = self._settings.retry.attempts(deadline, random=random.random)
        return Route(attempts, num_targets=len(self._stubs), place=self.place)


class _StreamCalls:
    """What one stream asks of its client's connection."""

    def __init__(self, connection: Connection, request: StreamRequest, deadline: Deadline) -> None:
        self._connection = connection
        self._request = request
        self._deadline = deadline

    def open(self, step: NextCall) -> StreamCall:
        return self._connection.open_call(step, self._request, self._deadline.remaining_s())

    def cancel(self, place: int) -> SentCancel:
        return self._connection.send_cancel(self._request.state.request_id, place)

    def failure(self, error: grpc.RpcError, place: int) -> ServiceError:
        return self._connection.failure(error, place, self._request.state.request_id)

    def note_served(self, place: int) -> None:
        self._connection.place = place


class SentCancel:
    """A Cancel that was sent; whether it found anything to cancel does not matter."""

    def __init__(self, future: grpc.Future[inference_pb2.CancelResponse] | None) -> None:
        self._future = future

    def wait(self) -> None:
        """Returns when it is answered or failed."""
        if self._future is None:
            return
        try:
            self._future.exception(timeout=_CANCEL_LIMIT_S)
        except (grpc.FutureTimeoutError, grpc.FutureCancelledError):
            return
