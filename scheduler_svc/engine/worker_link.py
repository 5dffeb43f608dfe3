"""The core's side of the step protocol: epochs, and what ranks say in them.

A state machine over an injected sender and the caller's clock. Knows nothing of plans' contents,
of requests, or of how ranks are started. What it learns it leaves as events, in order, for
`take_events`.
"""

import logging
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from octavo.internal.v1 import control_pb2 as control
from octavo.internal.v1 import step_pb2 as step
from scheduler_svc.engine.busy import BusyRanks
from scheduler_svc.engine.gathering import Gathering
from scheduler_svc.engine.rank_group import RankGroup
from scheduler_svc.engine.router import Sender, Sent
from scheduler_svc.engine.step_codec import MalformedMessage, decode_result
from scheduler_svc.engine.worker_events import EpochBegun, EpochEnded, StepDone, WorkerEvent
from scheduler_svc.seldom_log import SeldomLog

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSettings:
    """What the core tells ranks of each epoch, and how long it waits for them."""

    core_incarnation: int
    max_steps_in_flight: int
    num_tokenizer_ids: int | None  # None: the whole vocabulary
    handshake_limit_s: float


class WorkerLink:
    """Brings rank groups into epochs, one at a time."""

    def __init__(self, sender: Sender, settings: EpochSettings) -> None:
        self._sender = sender
        self._garbage = SeldomLog(
            _LOG, "dropped %d messages on the step socket that are no RankMessage"
        )
        self._settings = settings
        self._gathering = Gathering(sender, limit_s=settings.handshake_limit_s)
        self._busy = BusyRanks()
        self._running_group = 0
        self._named_at = 0.0
        self._welcomed_at = 0.0
        self._group: RankGroup | None = None  # that was welcomed
        self._epoch = step.Epoch()
        self._num_epochs = 0
        self._ready_ranks: set[int] = set()
        self._has_begun = False
        self._next_result = 1
        self._events: list[WorkerEvent] = []

    # --- what others ask ---

    @property
    def epoch(self) -> step.Epoch | None:
        """The epoch in which plans may be sent."""
        return self._epoch if self._has_begun else None

    @property
    def num_epochs(self) -> int:
        """Epochs welcomed by this process."""
        return self._num_epochs

    @property
    def world_size(self) -> int:
        """Ranks in the epoch; 0 outside one."""
        return self._group.world_size if self._group is not None and self._has_begun else 0

    @property
    def condition(self) -> str:
        """Why no epoch runs, in words; empty while one does."""
        if self._has_begun:
            return ""
        if self._busy.reason:
            return f"workers are busy: {self._busy.reason}"
        return "workers prepare themselves" if self._group else self._gathering.condition

    @property
    def kill_orders(self) -> dict[int, str]:
        """Groups to be killed, with the reason, until their supervisor names another one."""
        return self._gathering.kill_orders

    @property
    def busy_until(self) -> float:
        """Until when some rank said it may be silent."""
        return self._busy.until

    def take_events(self) -> list[WorkerEvent]:
        """What happened since the last call."""
        events, self._events = self._events, []
        return events

    # --- what peers say ---

    def receive(self, identity: bytes, payload: bytes, now: float) -> None:
        """Takes one message of a rank."""
        try:
            message = step.RankMessage.FromString(payload)
        except DecodeError:
            self._garbage.note()
            return
        kind = message.WhichOneof("kind")
        if kind == "busy":
            self._busy.note(identity, message.busy, now)
            return
        self._busy.note_awake(identity)
        if kind == "result":
            self._receive_result(identity, message.result, now)
        elif kind == "hello":
            self._receive_hello(identity, message.hello, now)
        elif kind == "ready":
            self._receive_ready(identity, message.ready)
        elif kind == "fatal":
            self._receive_fatal(identity, message.fatal, now)

    def note_group(self, state: control.GroupState, now: float) -> None:
        """Takes the word of the workers' supervisor on which group runs."""
        running = state.group_incarnation
        if running != self._running_group:
            self._running_group = running
            self._named_at = now
            self._busy.forget_all()
        if self._group is not None and self._group.incarnation != running:
            reason = state.last_death or "the rank group is gone"
            self._end_epoch(reason, cause="rank_died", was_fatal=True, now=now)
        self._gathering.note_running(running)

    # --- what the engine does ---

    def send_plan(self, payload: bytes, now: float) -> None:
        """Sends a plan to all ranks; one that cannot take it ends the epoch."""
        assert self._group is not None, "plans are sent in epochs only"
        self._send_all(self._group, payload, cause="plan_not_sent", now=now)

    def send_masks(self, payload: bytes, now: float) -> None:
        """Sends all ranks what a step waits for; one that cannot take it ends the epoch."""
        assert self._group is not None, "masks are sent in epochs only"
        self._send_all(self._group, payload, cause="plan_not_sent", now=now)

    def reset(self, reason: str, *, cause: str, now: float) -> None:
        """Leaves the epoch; the ranks are asked to say Hello again."""
        self._end_epoch(reason, cause=cause, was_fatal=False, now=now)

    def kill(self, reason: str, *, cause: str, now: float) -> None:
        """Leaves the epoch and has the rank group killed: a stuck rank may spin on its device."""
        group = self._group
        if group is not None:
            self._end_epoch(reason, cause=cause, was_fatal=True, now=now)
            self._gathering.order_kill(group, reason)

    def tick(self, now: float) -> None:
        """Sends the life sign, due every half second, and checks the handshakes' deadlines."""
        self._busy.expire(now)
        beat = step.CoreToRank(beat=step.CoreBeat())
        if self._group is not None:
            beat.beat.epoch.CopyFrom(self._epoch)
        payload = beat.SerializeToString()
        self._gathering.tick(payload, busy_until=self._busy.until, now=now)
        group = self._group
        if group is None:
            return
        for rank, seat in sorted(group.seats.items()):
            # a full socket only loses the beat
            if self._sender.send(seat.identity, payload) is Sent.GONE:
                reason = f"the connection to rank {rank} is gone"
                self._end_epoch(reason, cause="rank_died", was_fatal=True, now=now)
                return
        if not self._has_begun and now >= max(group.deadline, self._busy.until):
            self.kill("not all ranks were ready in time", cause="handshake_overdue", now=now)

    # --- inside ---

    def _receive_result(self, identity: bytes, result: step.StepResult, now: float) -> None:
        group = self._group
        if group is None or group.rank_of(identity) != 0 or result.epoch != self._epoch:
            return
        if result.step != self._next_result:
            reason = f"result gap: expected step {self._next_result}, got {result.step}"
            self.reset(reason, cause="bad_result", now=now)
            return
        try:
            decoded = decode_result(result)
        except MalformedMessage as error:
            self.reset(f"malformed result: {error}", cause="bad_result", now=now)
            return
        self._next_result += 1
        self._events.append(StepDone(decoded))

    def _receive_hello(self, identity: bytes, hello: step.Hello, now: float) -> None:
        if self._gathering.is_killed(hello.group_incarnation):
            return
        group = self._group
        if group is not None and group.incarnation == hello.group_incarnation:
            problem = group.refusal(hello)
            if problem is not None:
                self._gathering.refuse([identity], problem)
                return
            is_same_socket = group.seats[hello.rank].identity == identity
            if is_same_socket and hello.welcomed_epoch != self._epoch:
                return  # it was sent before our Welcome arrived
            reason = f"rank {hello.rank} said Hello: {hello.reason}"
            self._end_epoch(reason, cause="rank_asked", was_fatal=False, now=now)
        complete = self._gathering.take(identity, hello, now)
        if complete is not None:
            self.kill("another rank group took over", cause="rank_died", now=now)
            self._welcome(complete, now)

    def _welcome(self, group: RankGroup, now: float) -> None:
        self._num_epochs += 1
        self._epoch = step.Epoch(
            core_incarnation=self._settings.core_incarnation, counter=self._num_epochs
        )
        self._group, self._has_begun = group, False
        self._ready_ranks, self._next_result = set(), 1
        self._welcomed_at = now
        group.deadline = now + self._settings.handshake_limit_s
        limits = group.limits()
        num_ids = self._settings.num_tokenizer_ids or limits.vocab_size
        welcome = step.Welcome(
            epoch=self._epoch,
            group_incarnation=group.incarnation,
            num_blocks=limits.num_blocks,
            max_steps_in_flight=self._settings.max_steps_in_flight,
            num_tokenizer_ids=min(num_ids, limits.vocab_size),
        )
        payload = step.CoreToRank(welcome=welcome).SerializeToString()
        self._send_all(group, payload, cause="rank_died", now=now)

    def _receive_ready(self, identity: bytes, ready: step.Ready) -> None:
        group = self._group
        if group is None or self._has_begun or ready.epoch != self._epoch:
            return
        rank = group.rank_of(identity)
        if rank is None:
            return
        self._ready_ranks.add(rank)
        if len(self._ready_ranks) < group.world_size:
            return
        self._has_begun = True
        limits = group.limits()
        _LOG.info(
            "epoch %d: %d rank(s), %d blocks of %d tokens",
            *(self._num_epochs, group.world_size, limits.num_blocks, limits.block_size),
        )
        digest = group.seats[0].hello.model_digest
        self._events.append(
            EpochBegun(
                limits=limits,
                model_digest=digest,
                world_size=group.world_size,
                named_at=self._named_at,
                welcomed_at=self._welcomed_at,
            )
        )

    def _receive_fatal(self, identity: bytes, fatal: step.Fatal, now: float) -> None:
        rank = self._group.rank_of(identity) if self._group is not None else None
        _LOG.error("rank %s cannot go on: %s", "?" if rank is None else rank, fatal.message)
        if rank is not None:
            self.kill(f"rank {rank}: {fatal.message}", cause="rank_died", now=now)

    def _send_all(self, group: RankGroup, payload: bytes, *, cause: str, now: float) -> None:
        for rank, seat in sorted(group.seats.items()):
            sent = self._sender.send(seat.identity, payload)
            if sent is not Sent.SENT:
                # those who got it and those who did not can no longer work together
                reason = f"rank {rank} did not take a message: {sent.value}"
                self._end_epoch(reason, cause=cause, was_fatal=sent is Sent.GONE, now=now)
                return

    def _end_epoch(self, reason: str, *, cause: str, was_fatal: bool, now: float) -> None:
        group = self._group
        if group is None:
            return
        _LOG.warning("epoch %d ended: %s", self._num_epochs, reason)
        if self._has_begun:
            self._events.append(EpochEnded(cause=cause, was_fatal=was_fatal))
        self._group, self._has_begun = None, False
        reset = step.Reset(epoch=self._epoch, reason=reason)
        payload = step.CoreToRank(reset=reset).SerializeToString()
        for rank, seat in list(group.seats.items()):
            if self._sender.send(seat.identity, payload) is Sent.GONE:
                del group.seats[rank]
        self._gathering.bring_back(group, now)
