"""The supervisor's side of the control link: who answers, what they report, what they are told.

Knows nothing of processes; a child here is a name that says Hello.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq
import zmq.asyncio
from google.protobuf.message import DecodeError

from octavo.internal.v1 import control_pb2 as control
from scheduler_svc.seldom_log import SeldomLog

_LOG = logging.getLogger(__name__)


# far above the longest list of requests; a peer that sends more is disconnected
_MAX_MESSAGE_BYTES = 64 * 2**20


class NoAnswer(Exception):
    """A child did not answer a question; the text says who and why."""


@dataclass(slots=True)
class ChildRecord:
    """What is known of one child's present incarnation."""

    role: str
    name: str
    pid: int
    incarnation: int
    identity: bytes
    answered_at: float
    busy_until: float = 0.0
    snapshot: control.Snapshot = field(default_factory=control.Snapshot)
    snapshot_at: float = 0.0
    group_state: control.GroupState | None = None

    def silent_for_s(self, now: float) -> float:
        """Seconds since the child last answered, not counting the time it said it would be busy."""
        return now - max(self.answered_at, min(self.busy_until, now))


class ControlHub:
    """A ROUTER on control.sock: `bind` first, `receive` in a loop, `ping` every half second."""

    def __init__(self, endpoint: str, *, clock: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._garbage = SeldomLog(_LOG, "dropped %d control messages that are no ChildMessage")
        self._clock = clock
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._records: dict[str, ChildRecord] = {}
        self._num_pings = 0
        self._num_questions = 0
        self._questions: dict[int, asyncio.Future[control.ChildMessage]] = {}

    def bind(self) -> None:
        """Opens the socket."""
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
        self._socket.bind(self._endpoint)

    def close(self) -> None:
        """Closes the socket; unsent orders are dropped."""
        self._socket.close()
        self._context.term()

    def record(self, name: str) -> ChildRecord | None:
        """The present incarnation of a child, or None before its first Hello."""
        return self._records.get(name)

    def records(self) -> list[ChildRecord]:
        """All children that said Hello, by name."""
        return [self._records[name] for name in sorted(self._records)]

    def forget(self, name: str) -> None:
        """Drops a child that died."""
        self._records.pop(name, None)

    async def receive(self) -> ChildRecord | None:
        """Waits for one message and notes it; returns the child when this was its first Hello."""
        identity, *frames = await self._socket.recv_multipart()
        try:
            message = control.ChildMessage.FromString(frames[-1] if frames else b"")
        except DecodeError:
            self._garbage.note()
            return None
        return self._note(identity, message, self._clock())

    def _note(
        self, identity: bytes, message: control.ChildMessage, now: float
    ) -> ChildRecord | None:
        kind = message.WhichOneof("kind")
        if kind == "hello":
            return self._note_hello(identity, message.hello, now)
        record = next((r for r in self._records.values() if r.identity == identity), None)
        if record is None:
            return None  # an earlier incarnation's last words
        record.answered_at = now
        if kind == "snapshot":
            record.snapshot, record.snapshot_at = message.snapshot, now
        elif kind == "busy":
            record.busy_until = now + message.busy.limit_ms / 1000
            _LOG.info("%s is busy: %s", record.name, message.busy.reason)
        elif kind == "group_state":
            record.group_state = message.group_state
        elif kind in {"request_list", "cache_flushed"}:
            self._answered(getattr(message, kind).call, message)
        return None

    def _answered(self, call: int, message: control.ChildMessage) -> None:
        answer = self._questions.get(call)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _note_hello(
        self, identity: bytes, hello: control.ChildHello, now: float
    ) -> ChildRecord | None:
        known = self._records.get(hello.name)
        if known is not None and known.incarnation == hello.incarnation:
            known.identity, known.answered_at = identity, now
            return None
        record = ChildRecord(
            role=hello.role,
            name=hello.name,
            pid=hello.pid,
            incarnation=hello.incarnation,
            identity=identity,
            answered_at=now,
        )
        self._records[hello.name] = record
        return record

    async def ping(self) -> None:
        """Asks every child for a life sign."""
        self._num_pings += 1
        order = control.ControlMessage(ping=control.Ping(number=self._num_pings))
        for record in self.records():
            await self.send(record, order)

    async def ask(
        self, name: str, make: Callable[[int], control.ControlMessage], *, limit_s: float
    ) -> control.ChildMessage:
        """Asks a child; `make` puts the number of the call in. Raises NoAnswer."""
        record = self.record(name)
        if record is None:
            raise NoAnswer(f"{name} is not running")
        self._num_questions += 1
        call = self._num_questions
        answer: asyncio.Future[control.ChildMessage] = asyncio.get_running_loop().create_future()
        self._questions[call] = answer
        try:
            if not await self.send(record, make(call)):
                raise NoAnswer(f"{name} cannot be reached")
            async with asyncio.timeout(limit_s):
                return await answer
        except TimeoutError as error:
            raise NoAnswer(f"{name} did not answer for {limit_s:g} s") from error
        finally:
            del self._questions[call]

    async def send(self, record: ChildRecord, order: control.ControlMessage) -> bool:
        """Sends an order; returns whether the child could take it. Never waits."""
        try:
            await self._socket.send_multipart(
                [record.identity, order.SerializeToString()], flags=zmq.NOBLOCK
            )
        except zmq.ZMQError:
            return False  # gone or full: its silence is noticed by its deadline
        return True
