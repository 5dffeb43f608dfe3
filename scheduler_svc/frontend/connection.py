"""One connection to the core, from its Hello to its end: a socket, numbers, what is not sent yet.

Messages count from 1 each way; a gap ends the connection. Nothing blocks: what the socket does not
take waits here, in order, and takes its number when it goes. Knows nothing of requests.
"""

import secrets
from collections import deque
from collections.abc import Callable

import zmq
from google.protobuf.message import DecodeError

from octavo.internal.v1 import engine_pb2 as engine


class ConnectionBroken(Exception):
    """Messages were lost or make no sense: only a fresh connection helps."""


class EngineConnection:
    """A DEALER on engine.sock, with an identity of its own.

    The socket's file descriptor only tells of changes: after every send the owner has to look for
    messages again, and is asked to by `after_send`.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        *,
        after_send: Callable[[], None],
    ) -> None:
        self._endpoint = endpoint
        self._after_send = after_send
        self._unsent: deque[engine.FrontendToCore] = deque()
        self._num_sent = 0
        self._num_received = 0
        self._socket = context.socket(zmq.DEALER)

    def open(self) -> int:
        """Begins to connect; returns the file descriptor to watch."""
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        # an identity may not begin with a zero byte
        self._socket.setsockopt(zmq.IDENTITY, b"f" + secrets.token_bytes(15))
        self._socket.connect(self._endpoint)
        return int(self._socket.getsockopt(zmq.FD))

    def close(self) -> None:
        """Ends the connection; what was not sent is dropped."""
        self._socket.close()

    @property
    def is_writable(self) -> bool:
        """Whether a core is connected that takes messages. False at once when it dies."""
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT)

    @property
    def is_readable(self) -> bool:
        """Whether a message is there. False means that the descriptor will tell of the next one.

        Any look at the socket's state can take the descriptor's signal; so this is the last look
        before one relies on it again.
        """
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def send(self, message: engine.FrontendToCore) -> None:
        """Sends the message now, or as soon as the socket takes it, after all earlier ones."""
        self._unsent.append(message)
        self.flush()
        self._after_send()

    def send_beat(self) -> None:
        """Sends a life sign, or drops it when it would have to wait."""
        if not self._unsent and self._try_send(engine.FrontendToCore(beat=engine.FrontendBeat())):
            self._after_send()

    def flush(self) -> None:
        """Sends what waits, as far as the socket takes it."""
        while self._unsent and self._try_send(self._unsent[0]):
            self._unsent.popleft()

    def receive(self) -> engine.CoreToFrontend | None:
        """The next message, None when none is there. Raises ConnectionBroken at a gap."""
        try:
            payload = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        try:
            message = engine.CoreToFrontend.FromString(payload)
        except DecodeError as error:
            raise ConnectionBroken("the core sent what is no message") from error
        self._num_received += 1
        if message.message_number != self._num_received:
            raise ConnectionBroken(
                f"message {self._num_received} from the core was lost:"
                f" number {message.message_number} came"
            )
        return message

    def _try_send(self, message: engine.FrontendToCore) -> bool:
        if not self.is_writable:
            return False
        message.message_number = self._num_sent + 1
        try:
            self._socket.send(message.SerializeToString(), zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._num_sent += 1
        return True
