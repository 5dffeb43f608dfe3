"""A bound ROUTER socket that never blocks. Knows nothing of what is said on it."""

import enum
from typing import Protocol

import zmq

_GARBAGE = b"\xff"


class CannotBind(Exception):
    """An endpoint cannot be opened; the text names it and the reason."""


class Sent(enum.Enum):
    """What became of a message."""

    SENT = "sent"
    FULL = "full"  # the peer does not read; nothing was sent
    GONE = "gone"  # no such peer is connected


class Sender(Protocol):
    """What links need of a socket, so that tests can do without."""

    def send(self, identity: bytes, payload: bytes) -> Sent:
        """Sends one message to one peer, or says why not. Never waits."""


class Router:
    """`bind` first; sends and receives never wait."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        *,
        max_unsent: int,
        max_bytes: int,
    ) -> None:
        """A peer that sends a message above `max_bytes` is disconnected."""
        self._endpoint = endpoint
        self._max_unsent = max_unsent
        self._max_bytes = max_bytes
        self.socket = context.socket(zmq.ROUTER)
        self.num_bytes_received = 0

    def bind(self) -> None:
        """Opens the endpoint. Raises CannotBind."""
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.SNDHWM, self._max_unsent)
        self.socket.setsockopt(zmq.MAXMSGSIZE, self._max_bytes)
        try:
            self.socket.bind(self._endpoint)
        except zmq.ZMQError as error:
            raise CannotBind(f"cannot bind {self._endpoint}: {error}") from error

    def close(self) -> None:
        """Closes the endpoint; what was not sent is dropped."""
        self.socket.close()

    def receive(self) -> tuple[bytes, bytes] | None:
        """The next message with its sender's identity, None when there is none.

        One in several pieces, which none of our processes sends, comes as what no protocol reads.
        """
        try:
            identity, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        self.num_bytes_received += sum(map(len, frames))
        return identity, frames[0] if len(frames) == 1 else _GARBAGE

    def send(self, identity: bytes, payload: bytes) -> Sent:
        """Sends one message to one peer, or says why not."""
        try:
            self.socket.send_multipart((identity, payload), zmq.NOBLOCK)
        except zmq.Again:
            return Sent.FULL
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return Sent.GONE
        return Sent.SENT
