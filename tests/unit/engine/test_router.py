"""What a ROUTER does with peers that read, do not read, or are gone."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq
from google.protobuf.message import DecodeError

from octavo.internal.v1 import step_pb2 as step
from scheduler_svc.core.plan import StepPlan
from scheduler_svc.engine.router import CannotBind, Router, Sent
from scheduler_svc.engine.step_codec import encode_plan

LIMIT_S = 60.0
Context = zmq.Context[zmq.Socket[bytes]]


class Ends:
    """A router and its peer over a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.context: Context = zmq.Context()
        self._folder = folder
        self._sockets: list[zmq.Socket[bytes]] = []

    def router(
        self, *, max_unsent: int = 1000, max_bytes: int = 1 << 20, name: str = "test"
    ) -> Router:
        router = Router(
            self.context,
            f"ipc://{self._folder}/{name}.sock",
            max_unsent=max_unsent,
            max_bytes=max_bytes,
        )
        self._sockets.append(router.socket)
        router.bind()
        return router

    def peer(self, *, receive_limit: int = 1000) -> zmq.Socket[bytes]:
        peer = self.context.socket(zmq.DEALER)
        self._sockets.append(peer)
        peer.setsockopt(zmq.IDENTITY, b"peer")
        peer.setsockopt(zmq.RCVHWM, receive_limit)
        peer.connect(f"ipc://{self._folder}/test.sock")
        return peer

    def close(self) -> None:
        for end in self._sockets:
            end.close(linger=0)
        self.context.term()


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    ends = Ends(tmp_path)
    yield ends
    ends.close()


def wait_for(router: Router) -> tuple[bytes, bytes]:
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        message = router.receive()
        if message is not None:
            return message
        time.sleep(0.001)
    raise AssertionError("no message came")


def send_until(router: Router, payload: bytes, outcome: Sent, pause: Callable[[], None]) -> int:
    """Sends until it ends like this; returns how many messages were sent before."""
    end, num_sent = time.monotonic() + LIMIT_S, 0
    while time.monotonic() < end:
        sent = router.send(b"peer", payload)
        if sent is outcome:
            return num_sent
        num_sent += 1
        pause()
    raise AssertionError(f"never {outcome}")


def test_strangers_and_closed_peers_are_gone(ends: Ends) -> None:
    router = ends.router()
    assert router.send(b"peer", b"x") is Sent.GONE
    peer = ends.peer()
    peer.send(b"hello")
    assert wait_for(router) == (b"peer", b"hello")
    assert router.send(b"peer", b"x") is Sent.SENT
    peer.close(linger=0)
    send_until(router, b"x", Sent.GONE, lambda: time.sleep(0.001))


def test_peer_that_does_not_read_is_full_and_gets_all_that_was_sent(ends: Ends) -> None:
    router = ends.router(max_unsent=3)
    peer = ends.peer(receive_limit=1)
    peer.send(b"hello")
    wait_for(router)
    num_sent = send_until(router, bytes(100_000), Sent.FULL, lambda: None)
    assert num_sent >= 3
    num_received = 0
    while num_received < num_sent:
        assert peer.poll(int(1000 * LIMIT_S))
        assert peer.recv() == bytes(100_000)
        num_received += 1
    send_until(router, b"again", Sent.SENT, lambda: time.sleep(0.001))
    assert peer.poll(int(1000 * LIMIT_S))
    assert peer.recv() == b"again"


def test_largest_plan_arrives_whole(ends: Ends) -> None:
    num_rows, num_tokens, num_blocks = 4096, 262_144, 1_000_000
    ones = np.ones(num_rows, np.int32)
    plan = StepPlan(
        step=1,
        slots=np.arange(num_rows, dtype=np.int32),
        chunk_rows=np.arange(num_rows, dtype=np.int32),
        chunk_generations=ones,
        chunk_num_tokens=np.full(num_rows, num_tokens // num_rows, np.int32),
        chunk_start_positions=ones,
        chunk_samples=np.ones(num_rows, np.uint8),
        chunk_tokens=np.arange(num_tokens, dtype=np.int32),
        new_block_slots=np.arange(num_blocks, dtype=np.int32),
        new_block_indexes=np.arange(num_blocks, dtype=np.int32),
        new_block_ids=np.arange(num_blocks, dtype=np.int32),
        starts=(),
        position_checksum=5,
        num_decode_rows=0,
        num_prefill_tokens=num_tokens,
    )
    payload = encode_plan(plan, step.Epoch(core_incarnation=1, counter=1))
    router = ends.router()
    peer = ends.peer()
    peer.send(b"hello")
    wait_for(router)
    assert router.send(b"peer", payload) is Sent.SENT
    assert peer.poll(int(1000 * LIMIT_S))
    received = step.CoreToRank.FromString(peer.recv()).plan
    assert received.new_block_ids == plan.new_block_ids.tobytes()
    assert received.chunk_tokens == plan.chunk_tokens.tobytes()


def test_endpoint_that_cannot_be_bound_is_named(ends: Ends) -> None:
    with pytest.raises(CannotBind, match="missing/test"):
        ends.router(name="missing/test")


def test_a_peer_that_sends_too_much_at_once_is_disconnected(ends: Ends) -> None:
    router = ends.router(max_bytes=1000)
    peer = ends.peer()
    peer.send(b"hello")
    wait_for(router)
    peer.send(bytes(1001))
    send_until(router, b"x", Sent.GONE, lambda: time.sleep(0.001))
    assert router.receive() is None


def test_a_message_in_pieces_is_nothing_and_holds_up_nobody(ends: Ends) -> None:
    router = ends.router()
    peer = ends.peer()
    for _ in range(3):
        peer.send_multipart([b"two", b"pieces"])
    peer.send(b"whole")
    received = [wait_for(router) for _ in range(4)]
    assert received[3] == (b"peer", b"whole")
    for identity, payload in received[:3]:
        assert identity == b"peer"
        with pytest.raises(DecodeError):
            step.RankMessage.FromString(payload)
