"""The core's side of `steps.sock` and `workers.sock`, move by move. Every wait has a limit."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import zmq
from google.protobuf.message import Message

from octavo.internal.v1 import control_pb2, step_pb2
from tests.fakes.plan_writer import PlanWriter, from_int32s

LIMIT_S = 20.0
BEAT_INTERVAL_S = 0.2

T = TypeVar("T")


class NothingCame(AssertionError):
    """What a test waited for did not come in time."""


class Router:
    """A bound socket that sorts what comes, and remembers who said it."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", path: Path) -> None:
        self._socket = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(f"ipc://{path}")

    def receive(self, timeout_s: float) -> tuple[bytes, bytes] | None:
        """(identity, payload) of the next message."""
        if not self._socket.poll(round(1000 * timeout_s)):
            return None
        identity, payload = self._socket.recv_multipart()
        return identity, payload

    def send(self, identity: bytes, message: Message | bytes) -> bool:
        """Whether the peer could be sent to."""
        payload = message if isinstance(message, bytes) else message.SerializeToString()
        try:
            self._socket.send_multipart([identity, payload], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()


class ScriptedCore:
    """A core that does what the test says. A context manager."""

    def __init__(self, run_dir: Path, *, incarnation: int = 77, beats: bool = True) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._steps = Router(self._context, run_dir / "steps.sock")
        self._workers = Router(self._context, run_dir / "workers.sock")
        self.beats = beats
        self.incarnation = incarnation
        self.epoch = step_pb2.Epoch(core_incarnation=incarnation, counter=0)
        self.ranks: dict[int, bytes] = {}
        """Identity of each rank's last Hello."""
        self.supervisor: bytes | None = None
        self.states: list[control_pb2.GroupState] = []
        self.fatals: list[step_pb2.Fatal] = []
        self._said: deque[tuple[bytes, step_pb2.RankMessage]] = deque()
        self._next_beat_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._steps.close()
        self._workers.close()
        self._context.term()

    def wait_for(self, found: Callable[[], T | None], *, what: str, limit_s: float = LIMIT_S) -> T:
        """Serves both sockets until `found()` returns something."""
        end = time.monotonic() + limit_s
        while (value := found()) is None:
            if time.monotonic() > end:
                raise NothingCame(f"no {what} within {limit_s} s; states: {self.states[-1:]}")
            self._serve(0.02)
        return value

    def next(self, kind: str, *, limit_s: float = LIMIT_S) -> tuple[bytes, step_pb2.RankMessage]:
        """The next message of this kind, and its sender; others before it are dropped."""
        return self.wait_for(lambda: self._take(kind), what=kind, limit_s=limit_s)

    def hellos(
        self, ranks: Sequence[int] = (0,), *, limit_s: float = LIMIT_S
    ) -> list[step_pb2.Hello]:
        """The next Hello of these ranks, all of one incarnation."""
        latest: dict[int, step_pb2.Hello] = {}

        def complete() -> list[step_pb2.Hello] | None:
            while (said := self._take("hello")) is not None:
                hello = said[1].hello
                latest[hello.rank] = hello
                self.ranks[hello.rank] = said[0]
            incarnations = {hello.group_incarnation for hello in latest.values()}
            if not latest.keys() >= set(ranks) or len(incarnations) > 1:
                return None
            return [latest[rank] for rank in ranks]

        return self.wait_for(complete, what="hello of all ranks", limit_s=limit_s)

    def welcome(
        self,
        hellos: Sequence[step_pb2.Hello],
        *,
        num_tokenizer_ids: int = 0,
        num_blocks: int = 0,
        limit_s: float = LIMIT_S,
    ) -> PlanWriter:
        """Begins an epoch, waits for Ready; returns the epoch's plan writer."""
        self.epoch = step_pb2.Epoch(
            core_incarnation=self.incarnation, counter=self.epoch.counter + 1
        )
        welcome = step_pb2.Welcome(
            epoch=self.epoch,
            group_incarnation=hellos[0].group_incarnation,
            num_blocks=num_blocks or min(hello.num_blocks for hello in hellos),
            max_steps_in_flight=2,
            num_tokenizer_ids=num_tokenizer_ids or hellos[0].vocab_size,
        )
        self.send(step_pb2.CoreToRank(welcome=welcome))
        ready: set[bytes] = set()
        while len(ready) < len(hellos):
            identity, message = self.next("ready", limit_s=limit_s)
            assert message.ready.epoch == self.epoch
            ready.add(identity)
        return PlanWriter(self.epoch, block_size=hellos[0].block_size)

    def send(self, message: step_pb2.CoreToRank | bytes) -> None:
        """The same message to all ranks."""
        for identity in self.ranks.values():
            assert self._steps.send(identity, message)

    def send_plan(self, plan: step_pb2.StepPlan) -> None:
        """A plan to all ranks."""
        self.send(step_pb2.CoreToRank(plan=plan))

    def result(self, *, limit_s: float = LIMIT_S) -> step_pb2.StepResult:
        """The next result."""
        return self.next("result", limit_s=limit_s)[1].result

    def run(self, plan: step_pb2.StepPlan) -> list[int]:
        """Sends a plan; returns the tokens of its result."""
        self.send_plan(plan)
        result = self.result()
        assert result.step == plan.step
        assert result.epoch == plan.epoch
        return from_int32s(result.tokens)

    def order(self, message: control_pb2.ControlMessage) -> None:
        """An order to the worker supervisor."""
        supervisor = self.wait_for(lambda: self.supervisor, what="worker supervisor")
        assert self._workers.send(supervisor, message)

    def state(
        self, condition: Callable[[control_pb2.GroupState], bool], *, limit_s: float = LIMIT_S
    ) -> control_pb2.GroupState:
        """The first state, among those not yet looked at, that meets the condition."""

        def find() -> control_pb2.GroupState | None:
            while self.states:
                state = self.states.pop(0)
                if condition(state):
                    return state
            return None

        return self.wait_for(find, what="such group state", limit_s=limit_s)

    def _take(self, kind: str) -> tuple[bytes, step_pb2.RankMessage] | None:
        while self._said:
            identity, message = self._said.popleft()
            if message.WhichOneof("kind") == kind:
                return identity, message
        return None

    def _serve(self, timeout_s: float) -> None:
        self._beat()
        if (said := self._steps.receive(timeout_s)) is not None:
            message = step_pb2.RankMessage.FromString(said[1])
            self._said.append((said[0], message))
            if message.HasField("fatal"):
                self.fatals.append(message.fatal)
        while (told := self._workers.receive(0)) is not None:
            child = control_pb2.ChildMessage.FromString(told[1])
            if child.HasField("hello"):
                self.supervisor = told[0]
            elif child.HasField("group_state"):
                self.states.append(child.group_state)

    def _beat(self) -> None:
        now = time.monotonic()
        if not self.beats or now < self._next_beat_at:
            return
        self._next_beat_at = now + BEAT_INTERVAL_S
        beat = step_pb2.CoreBeat(epoch=self.epoch)
        for identity in self.ranks.values():
            self._steps.send(identity, step_pb2.CoreToRank(beat=beat))
        if self.supervisor is not None:
            ping = control_pb2.ControlMessage(ping=control_pb2.Ping(number=1))
            self._workers.send(self.supervisor, ping)
