"""One turn after the other: receive, apply, plan, deliver. Sleeps exactly until the next thing is
due.

Knows the order of things and nothing of their insides.
"""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import zmq

from octavo.internal.v1 import control_pb2 as control
from scheduler_svc.control.child import ControlChild
from scheduler_svc.control.child_protocol import DrainOrder, Order, ShutdownOrder
from scheduler_svc.control.silence import PatientClock
from scheduler_svc.core.core import Core
from scheduler_svc.core.news import StepNews
from scheduler_svc.core.request import EndReason
from scheduler_svc.engine.condition import Condition
from scheduler_svc.engine.desk import Desk
from scheduler_svc.engine.grammar.grammars import Grammars
from scheduler_svc.engine.group_link import GroupLink
from scheduler_svc.engine.holding import Holding
from scheduler_svc.engine.instant import Instant
from scheduler_svc.engine.intake import Intake
from scheduler_svc.engine.questions import answer_operator
from scheduler_svc.engine.report import Report
from scheduler_svc.engine.router import Router
from scheduler_svc.engine.steps import Steps
from scheduler_svc.engine.worker_link import WorkerLink

_LOG = logging.getLogger(__name__)

BEAT_INTERVAL_S = 0.5
# so that one busy socket does not keep the others waiting
_MOST_MESSAGES_A_TURN = 512
_MOST_BYTES_A_TURN = 2**20
# telling of so few takes less time than planning: their readers come before the workers' next plan
_FEW_ROWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sockets:
    """The bound ends."""

    steps: Router
    workers: Router
    engine: Router


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the loop turns."""

    core: Core
    steps: Steps
    workers: WorkerLink
    group: GroupLink
    desk: Desk
    intake: Intake
    holding: Holding
    report: Report
    grammars: Grammars


class Loop:
    """`connect`, then `turn` until `is_stopping`."""

    def __init__(self, parts: Parts, sockets: Sockets, *, clock: Callable[[], float]) -> None:
        self.parts = parts
        self._sockets = sockets
        self._clock = clock
        self._patient_clock = PatientClock(clock)
        self._control: ControlChild | None = None
        self._beat_due_at = 0.0
        self._cut_due_at: float | None = None
        self._told: Condition | None = None
        self.is_stopping = False
        self.poller = zmq.Poller()

    def connect(self, control_child: ControlChild) -> None:
        """Binds the sockets and presents the core to its supervisor."""
        for router in (self._sockets.workers, self._sockets.steps, self._sockets.engine):
            router.bind()
            self.poller.register(router.socket, zmq.POLLIN)
        self.poller.register(self.parts.grammars.fileno(), zmq.POLLIN)
        self._control = control_child
        control_child.connect(self.poller)
        # the first to say Hello must find a status to be told
        self._tell_condition(self._look(), is_beat=True)

    def close(self) -> None:
        """Closes the sockets; what was not sent is dropped."""
        for router in (self._sockets.workers, self._sockets.steps, self._sockets.engine):
            router.close()
        if self._control is not None:
            self._control.close()
        self.parts.grammars.close()

    def turn(self) -> None:
        """Waits until something is due or comes, and does it."""
        parts = self.parts
        if self.poller.poll(self._wait_ms(self._look())):
            parts.steps.note_change()
        at = self._look()
        self._obey(at)
        parts.grammars.quiet()
        parts.steps.send_masks(at)  # the workers may wait for them
        # the word on which ranks live comes before theirs
        self._receive_group(at)
        for identity, payload in _messages(self._sockets.steps):
            parts.workers.receive(identity, payload, at.patient)
        news = parts.steps.settle(at)
        if parts.steps.are_workers_busy and _num_rows(news) <= _FEW_ROWS:
            parts.desk.tell(news)
            parts.steps.plan(at)
        else:
            parts.steps.plan(at)  # the workers wait for this, frontends have time
            parts.desk.tell(news)
        for identity, payload in _messages(self._sockets.engine):
            parts.desk.receive(identity, payload, at)
            # the plan above found nothing to do, but this may be a request
            parts.steps.note_change()
        parts.desk.settle(at)
        self._expire(at)
        at = self._look()
        parts.steps.plan(at)
        parts.steps.check_overdue(at)
        parts.desk.tell([parts.core.take_news()])
        parts.desk.retry(at)
        self._beat(at)

    def snapshot(self) -> control.Snapshot:
        """What the supervisor is told once a second."""
        return self.parts.report.snapshot(self._look())

    # --- inside ---

    def _look(self) -> Instant:
        return Instant(now=self._clock(), patient=self._patient_clock())

    def _obey(self, at: Instant) -> None:
        assert self._control is not None, "connect comes first"
        for order in self._control.handle():
            self._take_order(order, at)

    def _take_order(self, order: Order, at: Instant) -> None:
        if isinstance(order, ShutdownOrder):
            _LOG.info("stopping: %s", order.reason)
            self.is_stopping = True
        elif isinstance(order, DrainOrder):
            self._drain(order, at)
        else:
            assert self._control is not None, "connect comes first"
            self._control.send_answer(answer_operator(self.parts.core, order, at.now))

    def _drain(self, order: DrainOrder, at: Instant) -> None:
        if not self.parts.report.is_draining:
            _LOG.info("draining, for at most %.0f s", order.limit_s)
        self.parts.report.is_draining = True
        self._cut_due_at = at.now + order.limit_s
        self._tell_condition(at, is_beat=False)

    def _receive_group(self, at: Instant) -> None:
        for identity, payload in _messages(self._sockets.workers):
            state = self.parts.group.receive(identity, payload)
            if state is not None:
                self.parts.workers.note_group(state, at.patient)
                if self._control is not None:
                    self._control.send_group_state(state)

    def _expire(self, at: Instant) -> None:
        core = self.parts.core
        expiry = core.next_expiry()
        if expiry is not None and at.now >= expiry:
            core.expire(at.now)
            self.parts.steps.note_change()
        if self._cut_due_at is not None and at.now >= self._cut_due_at:
            self._cut_due_at = at.now + BEAT_INTERVAL_S  # a frontend may still submit again
            num_live = core.counts().num_live
            if num_live:
                _LOG.warning("the drain's limit is met: %d requests are ended", num_live)
                core.end_all(EndReason.DRAINED, at.now)

    def _beat(self, at: Instant) -> None:
        is_due = at.patient >= self._beat_due_at
        if is_due:
            self._beat_due_at = at.patient + BEAT_INTERVAL_S
            self.parts.workers.tick(at.patient)
            self.parts.group.tick(self.parts.workers.kill_orders)
            self.parts.desk.tick(at)
            self.parts.desk.tell(self.parts.steps.settle(at))
        self._tell_condition(at, is_beat=is_due)

    def _tell_condition(self, at: Instant, *, is_beat: bool) -> None:
        parts = self.parts
        condition = parts.report.condition(at)
        if condition == self._told and not is_beat:
            return
        self._told = condition
        parts.intake.refuse_new(
            draining=condition.is_draining, no_workers=condition.are_workers_gone, now=at.now
        )
        parts.desk.tell_status(parts.report.status(condition))

    def _wait_ms(self, at: Instant) -> int:
        assert self._control is not None, "connect comes first"
        parts = self.parts
        patient_times = (self._beat_due_at, parts.steps.deadline())
        times = (
            parts.core.next_expiry(),
            parts.holding.next_due(at.now),
            parts.desk.retry_due_at(),
            self._cut_due_at,
        )
        waits = [time - at.now for time in times if time is not None]
        waits += [time - at.patient for time in patient_times if time is not None]
        waits.append(self._control.wait_s())
        wait_ms = math.ceil(1000 * min(waits))
        plan_due_at = parts.steps.plan_due_at()
        if plan_due_at is not None:
            wait_ms = min(wait_ms, int(1000 * (plan_due_at - at.patient)))
        return max(0, wait_ms)


def _num_rows(news: list[StepNews]) -> int:
    return sum(one.rows.numbers.size for one in news)


def _messages(router: Router) -> Iterator[tuple[bytes, bytes]]:
    most_bytes = router.num_bytes_received + _MOST_BYTES_A_TURN
    for _ in range(_MOST_MESSAGES_A_TURN):
        message = router.receive()
        if message is None:
            return
        yield message
        if router.num_bytes_received >= most_bytes:
            return
