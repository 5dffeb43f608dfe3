"""What the core says about itself, to frontends and to its supervisor. Gathers facts and changes
nothing.
"""

from octavo.internal.v1 import control_pb2 as control
from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.core.core import Core
from scheduler_svc.engine.condition import (
    Condition,
    Facts,
    encode_snapshot,
    encode_status,
    judge,
)
from scheduler_svc.engine.core_readings import CoreReadings
from scheduler_svc.engine.desk import Desk
from scheduler_svc.engine.group_link import GroupLink
from scheduler_svc.engine.instant import Instant
from scheduler_svc.engine.steps import Steps
from scheduler_svc.engine.worker_link import WorkerLink


class Report:
    """Asks the parts; `is_draining` is set by the loop."""

    def __init__(
        self,
        core: Core,
        *,
        steps: Steps,
        workers: WorkerLink,
        group: GroupLink,
        desk: Desk,
        readings: CoreReadings,
        core_incarnation: int,
        patience_s: float,
    ) -> None:
        self._core = core
        self._steps = steps
        self._workers = workers
        self._group = group
        self._desk = desk
        self._readings = readings
        self._core_incarnation = core_incarnation
        self._patience_s = patience_s
        self.is_draining = False

    def condition(self, at: Instant) -> Condition:
        """The judgement at a moment."""
        late_at = self._steps.late_at()
        return judge(
            Facts(
                now=at.now,
                has_epoch=self._core.has_epoch,
                workers_condition=self._workers.condition,
                permanent_error=self._group.permanent_error,
                epoch_left_at=self._steps.epoch_left_at,
                is_draining=self.is_draining,
                has_work=self._core.has_work,
                moved_at=self._steps.moved_at,
                late_at=None if late_at is None else at.now + late_at - at.patient,
                patience_s=self._patience_s,
            )
        )

    def status(self, condition: Condition) -> engine.CoreStatus:
        """What frontends are told."""
        limits = self._steps.limits
        return encode_status(
            condition,
            core_incarnation=self._core_incarnation,
            max_sequence_tokens=self._core.max_sequence_tokens,
            vocab_size=limits.vocab_size if limits is not None else 0,
            model_digest=self._steps.model_digest,
        )

    def snapshot(self, at: Instant) -> control.Snapshot:
        """What the supervisor is told once a second."""
        counts = self._core.counts()
        readings = self._readings.render(
            counts,
            waiting=self._core.count_waiting(),
            num_steps=self._core.num_steps_done,
            num_epochs=self._steps.num_epochs_begun,
            moved_s=at.now - self._steps.moved_at,
        )
        return encode_snapshot(
            self.condition(at),
            readings=readings,
            has_work=self._core.has_work,
            moved_s=at.now - self._steps.moved_at,
            is_drained=self.is_draining and not counts.num_live and not self._desk.has_unsent,
        )
