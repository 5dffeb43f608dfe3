"""Steps from plan to result: drives the core and the worker link in each turn. Knows no frontend
and no socket.

Requests live by the real clock (`now`), workers are judged by the patient one (`patient`).
"""

import logging

from scheduler_svc.core.core import Core
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.news import StepNews
from scheduler_svc.core.plan import BadResult, StepResult
from scheduler_svc.engine.core_readings import CoreReadings
from scheduler_svc.engine.grammar.grammars import Grammars
from scheduler_svc.engine.instant import Instant
from scheduler_svc.engine.pacing import Pacer
from scheduler_svc.engine.recovery import Recovery, Return
from scheduler_svc.engine.step_codec import encode_masks, encode_plan
from scheduler_svc.engine.worker_events import EpochBegun, EpochEnded, StepDone
from scheduler_svc.engine.worker_link import WorkerLink

_LOG = logging.getLogger(__name__)

# a poll's resolution: better early by this much than late
PLAN_SLACK_S = 0.001


class Steps:
    """`settle` after messages of ranks, `plan` when due, `check_overdue` in each turn."""

    def __init__(
        self,
        core: Core,
        workers: WorkerLink,
        pacer: Pacer,
        readings: CoreReadings,
        now: float,
        *,
        grammars: Grammars,
    ) -> None:
        self._core = core
        self._workers = workers
        self._pacer = pacer
        self._readings = readings
        self._grammars = grammars
        self._recovery = Recovery()
        self._num_ranks = 0
        self._is_worth_planning = False
        self._had_work = False
        self.limits: WorkerLimits | None = None
        self.model_digest = b""
        self.epoch_left_at: float | None = None
        self.moved_at = now  # when a step completed, or work came after there was none
        self.num_epochs_begun = 0

    def note_change(self) -> None:
        """Something happened that may make a step possible."""
        self._is_worth_planning = True

    def settle(self, at: Instant) -> list[StepNews]:
        """Takes in what the worker link learned; returns the news of completed steps."""
        news = []
        for event in self._workers.take_events():
            self._is_worth_planning = True
            if isinstance(event, StepDone):
                news += self._complete(event.result, at)
            elif isinstance(event, EpochBegun):
                self._begin_epoch(event, at)
            else:
                self._leave_epoch(event, at)
        return news

    def plan(self, at: Instant) -> None:
        """Sends plans that are due."""
        self._note_work(at.now)
        while self._is_worth_planning and self._is_due(at.patient):
            epoch = self._workers.epoch
            plan = None if epoch is None else self._core.plan(at.now)
            if plan is None or epoch is None:
                self._is_worth_planning = False
                return
            self._workers.send_plan(encode_plan(plan, epoch), at.patient)
            self._readings.note_plan(plan)
            if plan.masked_rows and self.limits is not None:
                self._grammars.order_masks(plan, epoch, vocab_size=self.limits.vocab_size)
                self.send_masks(at)
            self._pacer.issue(
                num_decode_rows=plan.num_decode_rows,
                num_prefill_tokens=plan.num_prefill_tokens,
                now=at.patient,
            )
            if self._workers.epoch is None:
                self.settle(at)

    @property
    def are_workers_busy(self) -> bool:
        """Whether they have a step to work on."""
        return self._pacer.is_step_out

    def send_masks(self, at: Instant) -> None:
        """Sends the masks that are made; ends outputs whose grammars cannot go on."""
        for done in self._grammars.take_masks():
            if self._workers.epoch != done.epoch:
                continue  # nobody waits for them
            payload = encode_masks(done.masks, step_number=done.step, epoch=done.epoch)
            self._workers.send_masks(payload, at.patient)
            for row, reason in done.failed:
                self._core.fail_masked(row, reason, at.now)
            if done.failed:
                self._is_worth_planning = True

    def plan_due_at(self) -> float | None:
        """When the next plan goes out, on the patient clock; None while none can."""
        if not self._is_worth_planning or not self._core.can_plan or not self._core.has_work:
            return None
        return self._pacer.plan_due_at() - PLAN_SLACK_S

    def deadline(self) -> float | None:
        """When the oldest step is overdue, on the patient clock."""
        deadline = self._pacer.deadline()
        return None if deadline is None else max(deadline, self._workers.busy_until)

    def late_at(self) -> float | None:
        """When the oldest step is late, on the patient clock."""
        late_at = self._pacer.late_at()
        return None if late_at is None else max(late_at, self._workers.busy_until)

    def check_overdue(self, at: Instant) -> None:
        """Gives up workers that do not answer."""
        deadline = self.deadline()
        if deadline is not None and at.patient >= deadline:
            step = self._core.num_steps_done + 1
            self._workers.kill(f"no result of step {step}", cause="step_overdue", now=at.patient)
            self.settle(at)

    def _is_due(self, patient: float) -> bool:
        return self._core.can_plan and patient >= self._pacer.plan_due_at() - PLAN_SLACK_S

    def _complete(self, result: StepResult, at: Instant) -> list[StepNews]:
        if not self._core.has_epoch:
            return []  # an earlier result of these ended the epoch
        try:
            news = self._core.apply(result, at.now)
        except BadResult as error:
            self._workers.reset(f"bad result: {error}", cause="bad_result", now=at.patient)
            return self.settle(at)
        self._readings.note_step(self._pacer.complete(at.patient))
        self.moved_at = at.now
        if len(news.rows.tokens):
            self._note_recovered(self._recovery.moved(at.patient))
        return [news]

    def _begin_epoch(self, event: EpochBegun, at: Instant) -> None:
        self.limits, self.model_digest = event.limits, event.model_digest
        self.epoch_left_at = None
        self.num_epochs_begun += 1
        self.moved_at = at.now
        self._recovery.returned(
            Return(named_at=event.named_at, welcomed_at=event.welcomed_at, ready_at=at.patient)
        )
        self._num_ranks = event.world_size
        self._readings.note_ranks(self._num_ranks, are_up=True)
        self._readings.note_limits(event.limits)
        self._core.start_epoch(event.limits, at.now)

    def _leave_epoch(self, event: EpochEnded, at: Instant) -> None:
        self.epoch_left_at = at.now
        if self._core.has_work:
            self._recovery.lost(at.patient)
        self._pacer.forget_steps()
        self._core.leave_epoch(at.now, was_fatal=event.was_fatal)
        self._readings.note_ranks(self._num_ranks, are_up=False)
        self._readings.note_recovery(event.cause)

    def _note_recovered(self, parts: dict[str, float] | None) -> None:
        if parts is not None:
            shown = ", ".join(f"{part} {seconds:.3f} s" for part, seconds in parts.items())
            _LOG.info("streams go on: %s", shown)
            self._readings.note_recovered(parts)

    def _note_work(self, now: float) -> None:
        has_work = self._core.has_work
        if has_work and not self._had_work:
            self.moved_at = now
        self._had_work = has_work
