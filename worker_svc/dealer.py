"""The connected side of a core's socket: greeting, silence, fresh sockets. Knows no message.

A greeting is the first thing said on a connection and waits for it; everything else is refused
while there is none. Sends never block.
"""

import math
import secrets
import time
from collections.abc import Callable

import zmq

SILENCE_LIMIT_S = 1.5
"""A core that sends nothing for this long is taken to be gone."""

_LONGEST_WAIT_S = 3600.0
# a longer pause between two polls was work, in which the core had no chance to be heard
_PAUSE_S = 0.1


class Silence:
    """Counts how long nothing was heard, while polling only."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._quiet_s = 0.0
        self._last_poll_end: float | None = None

    @property
    def remaining_s(self) -> float:
        """How much longer silence is tolerated."""
        return max(0.0, self.limit_s - self._quiet_s)

    def restart(self) -> None:
        """Counts anew: something was heard."""
        self._quiet_s = 0.0

    def begin_poll(self, now: float) -> None:
        """Notes that a poll begins; counts anew when a blocking stretch lies before it."""
        if self._last_poll_end is not None and now - self._last_poll_end > _PAUSE_S:
            self._quiet_s = 0.0

    def end_poll(self, now: float, *, began: float, asked_s: float) -> None:
        """Notes the end of a poll; only what was asked for counts, not a stop of this process."""
        self._quiet_s += min(now - began, asked_s)
        self._last_poll_end = now


class Dealer:
    """One DEALER socket at a time, each with an identity of its own. `open` before use."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        *,
        name: str,
        wake_fd: int | None = None,
        silence_limit_s: float = SILENCE_LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._endpoint = endpoint
        self._name = name
        self._wake_fd = wake_fd
        self._silence = Silence(silence_limit_s)
        self._clock = clock
        self._socket: zmq.Socket[bytes] | None = None
        self._poller = zmq.Poller()
        self._greeting: bytes | None = None

    def open(self, greeting: bytes) -> None:
        """Connects with a fresh socket and identity, leaving the old one; greets once connected."""
        self.close()
        opened = self._context.socket(zmq.DEALER)
        opened.setsockopt(zmq.ROUTING_ID, f"{self._name}-{secrets.token_hex(8)}".encode())
        opened.setsockopt(zmq.IMMEDIATE, 1)
        opened.setsockopt(zmq.LINGER, 0)
        opened.connect(self._endpoint)
        self._socket = opened
        self._poller = zmq.Poller()
        if self._wake_fd is not None:
            self._poller.register(self._wake_fd, zmq.POLLIN)
        self._silence.restart()
        self.greet(greeting)

    def greet(self, greeting: bytes) -> None:
        """Sends a greeting on this connection as soon as there is one, before anything else."""
        self._greeting = greeting
        self._send_greeting()

    def send(self, payload: bytes) -> bool:
        """Sends if that is possible at once; returns whether it was."""
        return self._send_greeting() and self._try_send(payload)

    def receive(self, timeout_s: float) -> bytes | None:
        """The next message; None when the time, silence or the wake descriptor ended the wait."""
        began = self._clock()
        self._silence.begin_poll(began)
        message = self._try_receive()
        if message is None and timeout_s > 0:
            self._wait(timeout_s)
            message = self._try_receive()
        if message is not None:
            self._silence.restart()
        is_counting = message is None and self._greeting is None
        self._silence.end_poll(
            self._clock(), began=began, asked_s=timeout_s if is_counting else 0.0
        )
        return message

    def is_silent(self) -> bool:
        """Whether the core was greeted and then not heard for too long."""
        return self._silence.remaining_s == 0.0

    def close(self, *, linger_s: float = 0.0) -> None:
        """Closes the socket; what is sent already gets `linger_s` to leave."""
        if self._socket is not None:
            self._socket.close(linger=round(1000 * linger_s))
            self._socket = None

    def _wait(self, timeout_s: float) -> None:
        """Returns when there may be something to do; greets when that becomes possible."""
        assert self._socket is not None
        limit_s = min(timeout_s, _LONGEST_WAIT_S)
        if self._greeting is None:
            limit_s = min(limit_s, self._silence.remaining_s)
        wanted = zmq.POLLIN if self._greeting is None else zmq.POLLIN | zmq.POLLOUT
        self._poller.register(self._socket, wanted)
        ready = dict(self._poller.poll(math.ceil(1000 * limit_s)))
        if ready.get(self._socket, 0) & zmq.POLLOUT:
            self._send_greeting()

    def _send_greeting(self) -> bool:
        """Whether nothing stands before the next message any more."""
        if self._greeting is not None and self._try_send(self._greeting):
            self._greeting = None
            self._silence.restart()
        return self._greeting is None

    def _try_send(self, payload: bytes) -> bool:
        assert self._socket is not None
        try:
            self._socket.send(payload, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _try_receive(self) -> bytes | None:
        assert self._socket is not None
        try:
            return self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
