"""The children's side of the control link, over real sockets and as a state machine."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from octavo.internal.v1 import control_pb2 as control
from scheduler_svc.control.child import ControlChild
from scheduler_svc.control.child_protocol import ChildProtocol, DrainOrder, Order, ShutdownOrder
from scheduler_svc.control.silence import PatientClock

LIMIT_S = 60.0


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


class Supervisor:
    """The bound side, as far as these tests need one."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.bind(endpoint)

    def receive(self) -> tuple[bytes, control.ChildMessage] | None:
        if not self.socket.poll(10):
            return None
        identity, payload = self.socket.recv_multipart()
        return identity, control.ChildMessage.FromString(payload)

    def send(self, identity: bytes, message: control.ControlMessage) -> None:
        self.socket.send_multipart([identity, message.SerializeToString()])


def receive_kind(
    supervisor: Supervisor, child: ControlChild, kind: str
) -> tuple[bytes, control.ChildMessage]:
    """Turns the child's loop until a message of the kind arrives."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        child.handle()
        received = supervisor.receive()
        if received is not None and received[1].WhichOneof("kind") == kind:
            return received
    raise AssertionError(f"no {kind} came")


def make_child(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, **arguments: object
) -> ControlChild:
    return ControlChild(
        context,
        endpoint,
        role="core",
        name="core",
        make_snapshot=lambda: control.Snapshot(is_ready=True),
        incarnation=7,
        **arguments,  # type: ignore[arg-type]  # clock only
    )


def test_child_says_hello_reports_and_answers_pings(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    endpoint = f"ipc://{tmp_path}/control.sock"
    poller = zmq.Poller()
    child = make_child(context, endpoint)
    child.connect(poller)  # before the supervisor is there
    supervisor = Supervisor(context, endpoint)

    identity, message = receive_kind(supervisor, child, "hello")
    assert (message.hello.role, message.hello.name, message.hello.incarnation) == (
        "core",
        "core",
        7,
    )
    _, message = receive_kind(supervisor, child, "snapshot")
    assert message.snapshot.is_ready

    supervisor.send(identity, control.ControlMessage(ping=control.Ping(number=41)))
    assert poller.poll(int(LIMIT_S * 1000))
    _, message = receive_kind(supervisor, child, "pong")
    assert message.pong.number == 41

    child.send_group_state(control.GroupState(group_incarnation=5))
    _, message = receive_kind(supervisor, child, "group_state")
    assert message.group_state.group_incarnation == 5
    child.close()
    supervisor.socket.close()


def test_silent_supervisor_gets_hello_from_a_new_identity(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    endpoint = f"ipc://{tmp_path}/control.sock"
    supervisor = Supervisor(context, endpoint)
    seconds = [0.0]
    child = make_child(context, endpoint, clock=lambda: seconds[0])
    poller = zmq.Poller()
    child.connect(poller)
    first, _ = receive_kind(supervisor, child, "hello")
    for _ in range(4):
        seconds[0] += 0.5
        child.handle()
    second, message = receive_kind(supervisor, child, "hello")
    assert second != first
    assert message.hello.incarnation == 7
    assert len(poller.sockets) == 1
    child.close()
    supervisor.socket.close()


async def test_asyncio_driver_passes_orders_on(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/control.sock"
    with zmq.Context() as context:
        supervisor = Supervisor(context, endpoint)
        child = make_child(context, endpoint)
        child.connect()
        orders: list[Order] = []
        task = asyncio.create_task(child.run(orders.append))
        identity = b""
        end = time.monotonic() + LIMIT_S
        while len(orders) < 2 and time.monotonic() < end:
            received = supervisor.receive()
            if received is not None and received[1].WhichOneof("kind") == "hello":
                identity = received[0]
                drain = control.Drain(limit_ms=2500)
                supervisor.send(identity, control.ControlMessage(drain=drain))
                shutdown = control.Shutdown(reason="test")
                supervisor.send(identity, control.ControlMessage(shutdown=shutdown))
            await asyncio.sleep(0.005)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        child.close()
        supervisor.socket.close()
    assert orders == [DrainOrder(limit_s=2.5), ShutdownOrder(reason="test")]


async def test_asyncio_driver_opens_fresh_sockets_while_nobody_answers(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/control.sock"
    with zmq.Context() as context:
        supervisor = Supervisor(context, endpoint)
        child = make_child(context, endpoint, clock=lambda: 1.4 * time.monotonic())
        child.connect()
        orders: list[Order] = []
        task = asyncio.create_task(child.run(orders.append))
        identities: set[bytes] = set()
        end = time.monotonic() + LIMIT_S
        while len(identities) < 3 and time.monotonic() < end and not task.done():
            received = supervisor.receive()
            if received is not None and received[1].WhichOneof("kind") == "hello":
                identities.add(received[0])
            await asyncio.sleep(0.002)
        assert not task.done()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        child.close()
        supervisor.socket.close()
    assert len(identities) == 3


def test_garbage_is_dropped_and_counts_as_a_life_sign() -> None:
    protocol = ChildProtocol(role="core", name="core", pid=1, incarnation=1, now=0.0)
    protocol.open(0.0)
    assert protocol.receive(b"\xff\xff\xff", 1.0) == (None, None)
    assert not protocol.is_silent(2.0)
    assert protocol.is_silent(2.5)


def test_clock_stands_still_while_nobody_looks() -> None:
    seconds = [100.0]
    clock = PatientClock(lambda: seconds[0])
    seconds[0] += 0.5
    assert clock() == 100.5
    seconds[0] += 60.0
    assert clock() == 100.5
    seconds[0] += 0.25
    assert clock() == 100.75
