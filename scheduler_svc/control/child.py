"""The children's side of the control link: one socket, driven by a zmq poller or by asyncio.

Knows nothing of what the child does. Sends never block: what the supervisor cannot take is
dropped, its silence or ours is noticed by the deadlines of either side.
"""

import os
import secrets
import time
from collections.abc import Callable

import zmq
import zmq.asyncio

from octavo.internal.v1 import control_pb2 as control
from scheduler_svc.control.child_protocol import ChildProtocol, Order
from scheduler_svc.control.silence import PatientClock

_LONGEST_WAIT_S = 0.5
# a socket takes its first message only once it is connected (IMMEDIATE)
_CONNECT_RETRY_S = 0.02


class ControlChild:
    """The link of one child: `connect`, then `handle` in each turn of a loop, at least every half
    second.

    The socket is replaced after silence; pass the poller to `connect` and it always holds the
    present one.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        *,
        role: str,
        name: str,
        make_snapshot: Callable[[], control.Snapshot],
        incarnation: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._endpoint = endpoint
        self._make_snapshot = make_snapshot
        self._clock = PatientClock(clock)
        self._protocol = ChildProtocol(
            role=role,
            name=name,
            pid=os.getpid(),
            incarnation=secrets.randbits(64) if incarnation is None else incarnation,
            now=self._clock(),
        )
        self._poller: zmq.Poller | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._unsent_hello: bytes | None = None

    def connect(self, poller: zmq.Poller | None = None) -> None:
        """Opens the socket, keeps it registered in `poller` from now on, and says Hello."""
        self._poller = poller
        self._open()

    def close(self) -> None:
        """Closes the socket; what was not sent is dropped."""
        if self._socket is None:
            return
        if self._poller is not None:
            self._poller.unregister(self._socket)
        self._socket.close()
        self._socket = None

    def wait_s(self) -> float:
        """Longest time until `handle` should run again, message or not."""
        if self._unsent_hello is not None:
            return _CONNECT_RETRY_S
        return min(_LONGEST_WAIT_S, max(0.0, self._protocol.next_due() - self._clock()))

    def handle(self) -> list[Order]:
        """Reads, answers, reports if due, replaces a silent socket; returns the orders read."""
        now = self._clock()
        orders = self._drain(now)
        if self._protocol.is_silent(now):
            self._open()
        if not self._is_introduced():
            return orders
        snapshot = self._protocol.snapshot(self._make_snapshot, now)
        if snapshot is not None:
            self._send(snapshot)
        return orders

    def send_group_state(self, state: control.GroupState) -> None:
        """Relays the state of the rank group; a lost one is repeated within a second."""
        if self._is_introduced():
            self._send(control.ChildMessage(group_state=state).SerializeToString())

    def send_answer(self, answer: control.ChildMessage) -> None:
        """Answers a question; the supervisor does not wait for a lost one for ever."""
        if self._is_introduced():
            self._send(answer.SerializeToString())

    def send_busy(self, *, reason: str, limit_s: float) -> None:
        """Announces that the loop will not turn for a while."""
        busy = control.Busy(reason=reason, limit_ms=int(limit_s * 1000))
        if self._is_introduced():
            self._send(control.ChildMessage(busy=busy).SerializeToString())

    async def run(self, on_order: Callable[[Order], None]) -> None:
        """Drives the link under asyncio until cancelled; call `connect` first, `close` after."""
        while True:
            poller = zmq.asyncio.Poller()
            poller.register(self._connected(), zmq.POLLIN)
            await poller.poll(max(1, int(self.wait_s() * 1000)))
            for order in self.handle():
                on_order(order)

    def _connected(self) -> zmq.Socket[bytes]:
        assert self._socket is not None, "connect comes first"
        return self._socket

    def _open(self) -> None:
        self.close()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.setsockopt(zmq.IDENTITY, secrets.token_bytes(16).replace(b"\0", b"\1"))
        self._socket.connect(self._endpoint)
        if self._poller is not None:
            self._poller.register(self._socket, zmq.POLLIN)
        self._unsent_hello = self._protocol.open(self._clock())
        self._is_introduced()

    def _drain(self, now: float) -> list[Order]:
        orders: list[Order] = []
        while True:
            try:
                payload = self._connected().recv(zmq.NOBLOCK)
            except zmq.Again:
                return orders
            answer, order = self._protocol.receive(payload, now)
            if answer is not None:
                self._send(answer)
            if order is not None:
                orders.append(order)

    def _is_introduced(self) -> bool:
        """Sends the Hello once the socket takes it; nothing goes out before."""
        if self._unsent_hello is not None and self._send(self._unsent_hello):
            self._unsent_hello = None
        return self._unsent_hello is None

    def _send(self, payload: bytes) -> bool:
        try:
            self._connected().send(payload, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True
