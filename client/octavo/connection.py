"""The calls of a blocking client: one channel, retries, deadlines, streams. Knows no arguments."""

from __future__ import annotations

import random
import time
from typing import TypeVar

import grpc

from octavo.channel import ClientSettings, open_channel
from octavo.errors import ClientClosed
from octavo.failures import service_error
from octavo.retries import Attempts, Deadline
from octavo.stream import StreamCall, StreamConnection, StreamMessage
from octavo.stream_keeper import StreamKeeper
from octavo.v1 import inference_pb2, inference_pb2_grpc

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
MessageT = TypeVar("MessageT", bound=StreamMessage)

_CANCEL_LIMIT_S = 2.0


class Connection:
    """One channel and everything that runs on it."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._channel = open_channel(settings)
        self.stub = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._streams = StreamKeeper()
        self._cancels: set[SentCancel] = set()
        self._is_closed = False

    def call(
        self,
        method: grpc.UnaryUnaryMultiCallable[RequestT, ResponseT],
        request: RequestT,
        *,
        timeout_s: float | None,
        request_id: str = "",
    ) -> ResponseT:
        """The answer to one message; tried again as the retry policy says."""
        deadline, attempts = self._attempts(timeout_s)
        while True:
            future = method.future(
                request, timeout=deadline.remaining_s(), metadata=self._settings.metadata
            )
            try:
                return future.result()
            except grpc.RpcError as error:
                self._check_open()
                failure = service_error(error, target=self._settings.target, request_id=request_id)
            except BaseException:  # such as Ctrl-C: nobody waits for the answer any more
                future.cancel()
                raise
            wait_s = attempts.wait_before_next_s(failure)
            if wait_s is None:
                raise failure
            time.sleep(wait_s)

    def open_stream(
        self,
        method: grpc.UnaryStreamMultiCallable[RequestT, MessageT],
        request: RequestT,
        *,
        timeout_s: float | None,
        request_id: str,
    ) -> StreamConnection:
        """Begins a streamed answer."""
        deadline, attempts = self._attempts(timeout_s)

        def open_call(remaining_s: float | None) -> StreamCall:
            return method(request, timeout=remaining_s, metadata=self._settings.metadata)

        stream = StreamConnection(
            open_call,
            request_id=request_id,
            target=self._settings.target,
            deadline=deadline,
            attempts=attempts,
            send_cancel=self._send_cancel,
            hand_over=self._streams.leave_soon,
        )
        self._streams.add(stream)
        return stream

    def close(self) -> None:
        """Cancels what runs, waits shortly until the service knows it, and closes the channel."""
        if self._is_closed:
            return
        self._streams.leave_all()
        for cancel in list(self._cancels):
            cancel.wait()
        self._is_closed = True
        self._channel.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("this client is closed")

    def _attempts(self, timeout_s: float | None) -> tuple[Deadline, Attempts]:
        self._check_open()
        deadline = Deadline(timeout_s, clock=time.monotonic)
        return deadline, Attempts(self._settings.retry, deadline, random=random.random)

    def _send_cancel(self, request_id: str) -> SentCancel:
        if self._is_closed:  # its streams were cancelled before
            return SentCancel(None)
        future = self.stub.Cancel.future(
            inference_pb2.CancelRequest(request_id=request_id),
            timeout=_CANCEL_LIMIT_S,
            metadata=self._settings.metadata,
        )
        cancel = SentCancel(future)
        self._cancels.add(cancel)
        future.add_done_callback(lambda _: self._cancels.discard(cancel))
        return cancel


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
