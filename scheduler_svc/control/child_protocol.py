"""What a supervised child says and hears on the control link, as a state machine. Knows no socket
and no clock.

The child says Hello, answers each Ping, and reports a Snapshot a second. When no Ping came for 1.5
s it says Hello again from a fresh socket.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from octavo.internal.v1 import control_pb2 as control
from octavo.v1 import admin_pb2 as admin

SILENCE_LIMIT_S = 1.5
SNAPSHOT_INTERVAL_S = 1.0

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOrder:
    """Refuse new work, finish what runs."""

    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownOrder:
    """Stop now."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOrder:
    """Answer what lives."""

    call: int
    request: admin.ListRequestsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushOrder:
    """Forget cached prefixes, and answer."""

    call: int


Order = DrainOrder | ShutdownOrder | ListOrder | FlushOrder


class ChildProtocol:
    """One child's side. Every `now` is in seconds on one clock that never goes back."""

    def __init__(self, *, role: str, name: str, pid: int, incarnation: int, now: float) -> None:
        self._hello = control.ChildHello(role=role, name=name, pid=pid, incarnation=incarnation)
        self._heard_at = now
        self._snapshot_due_at = now

    def open(self, now: float) -> bytes:
        """The first message of a fresh socket; the silence counts from here."""
        self._heard_at = now
        self._snapshot_due_at = now
        return control.ChildMessage(hello=self._hello).SerializeToString()

    def is_silent(self, now: float) -> bool:
        """Whether the supervisor was not heard for so long that the socket is worth nothing."""
        return now - self._heard_at >= SILENCE_LIMIT_S

    def next_due(self) -> float:
        """When `is_silent` or `snapshot` may change its answer by time alone."""
        return min(self._heard_at + SILENCE_LIMIT_S, self._snapshot_due_at)

    def receive(self, payload: bytes, now: float) -> tuple[bytes | None, Order | None]:
        """Takes one message: what to answer, and what the supervisor wants."""
        self._heard_at = now
        try:
            message = control.ControlMessage.FromString(payload)
        except DecodeError:
            _LOG.warning("dropped a control message that is no ControlMessage")
            return None, None
        kind = message.WhichOneof("kind")
        if kind == "ping":
            pong = control.Pong(number=message.ping.number)
            return control.ChildMessage(pong=pong).SerializeToString(), None
        return None, _order_in(message)

    def snapshot(self, make: Callable[[], control.Snapshot], now: float) -> bytes | None:
        """A Snapshot message when one is due."""
        if now < self._snapshot_due_at:
            return None
        self._snapshot_due_at = now + SNAPSHOT_INTERVAL_S
        return control.ChildMessage(snapshot=make()).SerializeToString()


def _order_in(message: control.ControlMessage) -> Order | None:
    """What the supervisor wants; None for what this child does not know."""
    match message.WhichOneof("kind"):
        case "drain":
            return DrainOrder(limit_s=message.drain.limit_ms / 1000)
        case "shutdown":
            return ShutdownOrder(reason=message.shutdown.reason)
        case "list_requests":
            asked = message.list_requests
            return ListOrder(call=asked.call, request=asked.request)
        case "flush_prefix_cache":
            return FlushOrder(call=message.flush_prefix_cache.call)
    return None
