"""Connections of frontends as a state machine: numbers, silence, fresh starts."""

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.engine.connection import Connection
from scheduler_svc.engine.frontend_link import (
    FrontendLink,
    OwnerGone,
    OwnerSeen,
    OwnerUnseen,
    Request,
)
from tests.unit.engine.recording_sender import RecordingSender


class Frontends:
    """Says what frontends say."""

    def __init__(self) -> None:
        self.sender = RecordingSender()
        self.link = FrontendLink(self.sender)

    def say(
        self, identity: bytes, number: int, message: engine.FrontendToCore, now: float = 0.0
    ) -> Connection | None:
        message.message_number = number
        return self.link.receive(identity, message.SerializeToString(), now)

    def hello(self, identity: bytes, name: str = "frontend-0", now: float = 0.0) -> Connection:
        hello = engine.FrontendHello(protocol_version=1, name=name, incarnation=1)
        connection = self.say(identity, 1, engine.FrontendToCore(hello=hello), now)
        assert connection is not None
        return connection

    def detach(self, identity: bytes, number: int, now: float = 0.0) -> None:
        message = engine.FrontendToCore(detach=engine.Detach(number=5))
        self.say(identity, number, message, now)

    def beat(self, identity: bytes, number: int, now: float) -> None:
        self.say(identity, number, engine.FrontendToCore(beat=engine.FrontendBeat()), now)


def test_numbered_messages_come_through_in_order() -> None:
    frontends = Frontends()
    connection = frontends.hello(b"a")
    frontends.detach(b"a", 2)
    frontends.beat(b"a", 3, now=0.1)
    frontends.detach(b"a", 4)
    events = frontends.link.take_events()
    assert [type(event) for event in events] == [Request, Request]
    assert all(isinstance(e, Request) and e.connection is connection for e in events)
    assert frontends.link.take_events() == []


def test_gap_loses_the_connection_and_later_messages_count_for_nothing() -> None:
    frontends = Frontends()
    connection = frontends.hello(b"a")
    frontends.detach(b"a", 3)
    frontends.detach(b"a", 4)
    assert frontends.link.take_events() == []
    assert connection.is_lost
    frontends.link.tick(0.5)
    assert frontends.link.take_events() == [OwnerUnseen(connection.owner)]
    assert not connection.offer(engine.CoreToFrontend(status=engine.CoreStatus()))
    connection.post(engine.CoreToFrontend(superseded=engine.Superseded(number=1)))
    assert frontends.sender.sent == []


def test_hello_anew_ends_the_earlier_connection_of_that_name_only() -> None:
    frontends = Frontends()
    first, other = frontends.hello(b"a"), frontends.hello(b"b", "frontend-1")
    frontends.detach(b"a", 2)
    second = frontends.hello(b"c")
    assert second.owner not in (first.owner, other.owner)
    events = frontends.link.take_events()
    assert isinstance(events[0], Request)
    assert events[1:] == [OwnerGone(first.owner)]
    assert frontends.link.connection(first.owner) is None
    assert frontends.link.connection(other.owner) is other
    frontends.detach(b"a", 3)  # from the identity that is over
    assert frontends.link.take_events() == []


def test_unseen_frontend_is_seen_again() -> None:
    frontends = Frontends()
    connection = frontends.hello(b"a", now=10.0)
    frontends.link.tick(11.4)
    assert frontends.link.take_events() == []
    frontends.link.tick(11.5)
    frontends.link.tick(12.0)
    assert frontends.link.take_events() == [OwnerUnseen(connection.owner)]
    frontends.beat(b"a", 2, now=12.5)
    assert frontends.link.take_events() == [OwnerSeen(connection.owner)]


def test_strangers_and_other_versions_are_ignored() -> None:
    frontends = Frontends()
    frontends.detach(b"a", 1)
    hello = engine.FrontendHello(protocol_version=2, name="frontend-0", incarnation=1)
    assert frontends.say(b"a", 1, engine.FrontendToCore(hello=hello)) is None
    late = engine.FrontendHello(protocol_version=1, name="frontend-0", incarnation=1)
    assert frontends.say(b"a", 2, engine.FrontendToCore(hello=late)) is None
    assert frontends.link.receive(b"a", b"\xff", 0.0) is None
    assert frontends.link.take_events() == []
    assert list(frontends.link) == []


def test_what_a_full_socket_did_not_take_keeps_its_order_and_takes_no_number() -> None:
    frontends = Frontends()
    connection = frontends.hello(b"a")
    frontends.sender.full.add(b"a")
    for number in (1, 2):
        connection.post(engine.CoreToFrontend(superseded=engine.Superseded(number=number)))
    assert not connection.offer(engine.CoreToFrontend(status=engine.CoreStatus()))
    assert connection.has_unsent
    frontends.sender.full.clear()
    connection.post(engine.CoreToFrontend(superseded=engine.Superseded(number=3)))
    messages = [engine.CoreToFrontend.FromString(p) for _, p in frontends.sender.take()]
    assert [message.superseded.number for message in messages] == [1, 2, 3]
    assert [message.message_number for message in messages] == [1, 2, 3]
    assert not connection.has_unsent


def test_peer_that_is_gone_loses_the_connection() -> None:
    frontends = Frontends()
    connection = frontends.hello(b"a")
    frontends.sender.gone.add(b"a")
    connection.post(engine.CoreToFrontend(superseded=engine.Superseded(number=1)))
    assert connection.is_lost
    assert not connection.has_unsent
