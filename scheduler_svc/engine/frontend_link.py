"""The frontends' connections: who is there, who was not heard, whose messages were lost. Knows no
request.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.engine.connection import Connection
from scheduler_svc.engine.router import Sender
from scheduler_svc.seldom_log import SeldomLog

PROTOCOL_VERSION = 1
UNSEEN_AFTER_S = 1.5

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OwnerGone:
    """The connection is over: its requests are orphans and their numbers are dead."""

    owner: int


@dataclass(frozen=True, slots=True)
class OwnerUnseen:
    """The frontend was not heard for a while; it may come back."""

    owner: int


@dataclass(frozen=True, slots=True)
class OwnerSeen:
    """An unseen frontend was heard again."""

    owner: int


@dataclass(frozen=True, slots=True)
class Request:
    """A frontend wants something."""

    connection: Connection
    message: engine.FrontendToCore


FrontendEvent = OwnerGone | OwnerUnseen | OwnerSeen | Request


class FrontendLink:
    """A state machine over an injected sender and the caller's clock.

    Events are left, in order, for `take_events`.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._garbage = SeldomLog(
            _LOG, "dropped %d messages on the engine socket that are no FrontendToCore"
        )
        self._by_identity: dict[bytes, Connection] = {}
        self._by_owner: dict[int, Connection] = {}
        self._num_owners = 0
        self._events: list[FrontendEvent] = []

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._by_owner.values()))

    @property
    def names(self) -> set[str]:
        """Frontends that have said Hello and are still connected."""
        return {connection.name for connection in self._by_owner.values()}

    def connection(self, owner: int) -> Connection | None:
        """The living connection of an owner."""
        return self._by_owner.get(owner)

    def take_events(self) -> list[FrontendEvent]:
        """What happened since the last call."""
        events, self._events = self._events, []
        return events

    def receive(self, identity: bytes, payload: bytes, now: float) -> Connection | None:
        """Takes one message; returns the connection that it began, if it did."""
        try:
            message = engine.FrontendToCore.FromString(payload)
        except DecodeError:
            self._garbage.note()
            return None
        if message.WhichOneof("kind") == "hello":
            return self._receive_hello(identity, message, now)
        connection = self._by_identity.get(identity)
        if connection is None or connection.is_lost:
            return None
        if not connection.take_number(message.message_number):
            _LOG.warning("%s: a message was lost; waiting for its next Hello", connection.name)
            connection.lose()
            return None
        self._note_heard(connection, now)
        if message.WhichOneof("kind") not in (None, "beat"):
            self._events.append(Request(connection, message))
        return None

    def tick(self, now: float) -> None:
        """Notes who was not heard; due every half second."""
        for connection in self:
            is_silent = now - connection.heard_at >= UNSEEN_AFTER_S
            if (is_silent or connection.is_lost) and not connection.is_unseen:
                connection.is_unseen = True
                _LOG.warning("%s is not heard any more", connection.name)
                self._events.append(OwnerUnseen(connection.owner))

    def _receive_hello(
        self, identity: bytes, message: engine.FrontendToCore, now: float
    ) -> Connection | None:
        hello = message.hello
        if hello.protocol_version != PROTOCOL_VERSION:
            _LOG.error(
                "%s speaks version %d of the engine protocol, the core version %d: ignored",
                *(hello.name, hello.protocol_version, PROTOCOL_VERSION),
            )
            return None
        for earlier in self:
            if hello.name == earlier.name or identity == earlier.identity:
                self._forget(earlier)
        self._num_owners += 1
        connection = Connection(
            self._sender,
            identity=identity,
            owner=self._num_owners,
            name=hello.name,
            incarnation=hello.incarnation,
            now=now,
        )
        if not connection.take_number(message.message_number):
            _LOG.warning("%s: its Hello was not its first message; ignored", hello.name)
            return None
        self._by_identity[identity] = self._by_owner[connection.owner] = connection
        _LOG.info("%s says Hello", hello.name)
        return connection

    def _forget(self, connection: Connection) -> None:
        del self._by_identity[connection.identity], self._by_owner[connection.owner]
        connection.lose()
        self._events.append(OwnerGone(connection.owner))

    def _note_heard(self, connection: Connection, now: float) -> None:
        connection.heard_at = now
        if connection.is_unseen:
            connection.is_unseen = False
            self._events.append(OwnerSeen(connection.owner))
