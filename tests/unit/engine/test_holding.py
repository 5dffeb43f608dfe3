"""What must wait for workers or for a name, and until when."""

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.engine.connection import Connection, Incoming
from scheduler_svc.engine.holding import Held, Holding
from tests.unit.engine.recording_sender import RecordingSender

NAME = ("tenant", "request")
OTHER = ("tenant", "other")


def make_connection(owner: int = 1) -> Connection:
    return Connection(
        RecordingSender(), identity=b"x", owner=owner, name="f", incarnation=1, now=0.0
    )


def make_held(
    *,
    connection: Connection | None = None,
    name: tuple[str, str] = NAME,
    number: int | None = 1,
    give_up_at: float | None = None,
) -> Held:
    return Held(
        incoming=Incoming(connection or make_connection(), engine.FrontendToCore(), 0.0),
        name=name,
        number=number,
        give_up_at=give_up_at,
    )


def test_unknown_names_may_become_known_for_three_seconds() -> None:
    holding = Holding(expected_frontends=["a"], now=100.0)
    assert holding.may_become_known(NAME, 102.9)
    assert not holding.may_become_known(NAME, 103.0)


def test_window_closes_soon_after_the_last_expected_frontend_came() -> None:
    holding = Holding(expected_frontends=["a", "b"], now=100.0)
    holding.note_hello("a", 100.1)
    holding.note_hello("a", 100.1)
    holding.note_hello("stranger", 100.1)
    assert holding.may_become_known(NAME, 101.0)
    holding.note_hello("b", 101.0)
    assert holding.may_become_known(NAME, 101.1)
    assert not holding.may_become_known(NAME, 101.5)


def test_name_that_came_already_is_not_waited_for() -> None:
    holding = Holding(expected_frontends=["a"], now=100.0)
    holding.note_known(NAME, 100.5)
    assert not holding.may_become_known(NAME, 100.6)
    assert holding.may_become_known(OTHER, 100.6)


def test_name_of_a_submit_that_waits_for_workers_is_waited_for() -> None:
    holding = Holding(expected_frontends=[], now=100.0)
    holding.wait_for_workers(make_held())
    assert holding.may_become_known(NAME, 1000.0)
    waiting = make_held(number=2)
    holding.wait_for_name(waiting)
    assert holding.take_unknown(1000.0) == []
    holding.take_for_workers()
    assert holding.take_unknown(1000.0) == [waiting]
    assert holding.take_unknown(1000.0) == []


def test_overdue_submits_leave_in_order_and_others_stay() -> None:
    holding = Holding(expected_frontends=[], now=100.0)
    soon, later, never = (make_held(give_up_at=at) for at in (105.0, 107.0, None))
    for held in (never, soon, later):
        holding.wait_for_workers(held)
    assert holding.next_due(100.0) == 105.0
    assert holding.take_overdue(104.9) == []
    assert holding.take_overdue(105.0) == [soon]
    assert holding.next_due(105.0) == 107.0
    assert holding.take_for_workers() == [never, later]
    assert holding.next_due(105.0) is None


def test_messages_for_a_name_leave_when_it_is_known() -> None:
    holding = Holding(expected_frontends=["a"], now=100.0)
    first, other, second = make_held(), make_held(name=OTHER), make_held()
    for held in (first, other, second):
        holding.wait_for_name(held)
    assert holding.next_due(100.0) == 103.0
    assert holding.take_named(NAME) == [first, second]
    assert holding.take_unknown(102.0) == []
    assert holding.take_unknown(103.0) == [other]


def test_what_a_connection_brought_goes_with_it() -> None:
    holding = Holding(expected_frontends=["a"], now=100.0)
    mine, theirs = make_connection(1), make_connection(2)
    kept = make_held(connection=theirs)
    holding.wait_for_workers(make_held(connection=mine))
    holding.wait_for_name(make_held(connection=mine))
    holding.wait_for_name(kept)
    holding.forget_owner(1)
    assert holding.take_for_workers() == []
    assert holding.take_unknown(200.0) == [kept]


def test_message_is_found_by_its_connection_and_number() -> None:
    holding = Holding(expected_frontends=["a"], now=100.0)
    mine, theirs = make_connection(1), make_connection(2)
    held = make_held(connection=mine, number=7)
    holding.wait_for_workers(make_held(connection=theirs, number=7))
    holding.wait_for_name(held)
    assert holding.take_request(mine, 8) is None
    assert holding.take_request(mine, 7) is held
    assert holding.take_request(mine, 7) is None
    assert len(holding.take_for_workers()) == 1
