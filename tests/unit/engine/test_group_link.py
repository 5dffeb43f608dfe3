"""The line to the workers' supervisor."""

from octavo.internal.v1 import control_pb2 as control
from scheduler_svc.engine.group_link import GroupLink
from tests.unit.engine.recording_sender import RecordingSender

HELLO = control.ChildMessage(
    hello=control.ChildHello(role="worker-supervisor", name="workers", pid=1, incarnation=1)
)


def state_message(group: int, **fields: object) -> bytes:
    state = control.GroupState(group_incarnation=group, **fields)  # type: ignore[arg-type]
    return control.ChildMessage(group_state=state).SerializeToString()


def orders(sender: RecordingSender) -> list[tuple[bytes, control.ControlMessage]]:
    return [(who, control.ControlMessage.FromString(p)) for who, p in sender.take()]


def test_nobody_is_pinged_before_a_hello() -> None:
    sender = RecordingSender()
    GroupLink(sender).tick({5: "stuck"})
    assert sender.sent == []


def test_pings_count_and_kill_orders_are_repeated() -> None:
    sender = RecordingSender()
    link = GroupLink(sender)
    link.receive(b"w", HELLO.SerializeToString())
    for _ in range(2):
        link.tick({5: "stuck"})
    told = orders(sender)
    assert [order.WhichOneof("kind") for _, order in told] == ["ping", "kill_group"] * 2
    assert [order.ping.number for _, order in told[::2]] == [1, 2]
    kill = told[1][1].kill_group
    assert (kill.group_incarnation, kill.reason) == (5, "stuck")


def test_state_is_taken_from_the_latest_supervisor_only() -> None:
    sender = RecordingSender()
    link = GroupLink(sender)
    assert link.receive(b"w", state_message(3)) is None
    link.receive(b"w", HELLO.SerializeToString())
    state = link.receive(b"w", state_message(3, permanent_error="no such model"))
    assert state is not None
    assert state.group_incarnation == 3
    assert link.permanent_error == "no such model"
    link.receive(b"v", HELLO.SerializeToString())
    assert link.receive(b"w", state_message(4)) is None
    assert link.state.group_incarnation == 3
    assert link.receive(b"v", b"\xff") is None


def test_supervisor_that_is_gone_is_not_pinged_until_it_says_hello_again() -> None:
    sender = RecordingSender()
    link = GroupLink(sender)
    link.receive(b"w", HELLO.SerializeToString())
    sender.gone.add(b"w")
    link.tick({})
    sender.gone.clear()
    link.tick({})
    assert sender.sent == []
    link.receive(b"w", HELLO.SerializeToString())
    link.tick({})
    assert len(sender.sent) == 1
