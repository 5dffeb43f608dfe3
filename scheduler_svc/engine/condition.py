"""Whether the replica takes work and gets on with it, judged from what the parts say. Changes
nothing.
"""

from dataclasses import dataclass

from octavo.internal.v1 import control_pb2 as control
from octavo.internal.v1 import engine_pb2 as engine

# new requests wait this long for workers that are being restarted
WORKERS_GRACE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the judgement rests on. Times are seconds on one clock."""

    now: float
    has_epoch: bool
    workers_condition: str  # why no epoch runs
    permanent_error: str  # of the workers
    epoch_left_at: float | None  # None before the first epoch
    is_draining: bool
    has_work: bool
    moved_at: float  # when a step completed, or work came after there was none
    late_at: float | None  # of the step that is out
    patience_s: float  # for work that waits while no step is out


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The judgement."""

    is_draining: bool
    workers_problem: str  # empty while steps can run
    is_starting: bool  # no epoch has run yet
    are_workers_gone: bool  # for so long that new requests are refused
    is_progressing: bool

    @property
    def refusal(self) -> str:
        """Why new requests are refused; empty while they are taken."""
        if self.is_draining:
            return "the replica is draining"
        return self.workers_problem if self.is_starting or self.are_workers_gone else ""

    @property
    def not_ready_reason(self) -> str:
        """Why no new connections should come; empty when they may."""
        if self.is_draining:
            return "the replica is draining"
        if self.workers_problem:
            return self.workers_problem
        return "" if self.is_progressing else "work waits and no step has finished"


def judge(facts: Facts) -> Condition:
    """The condition that follows from the facts."""
    problem = facts.permanent_error or ("" if facts.has_epoch else facts.workers_condition)
    left_at = facts.epoch_left_at
    outage_is_long = left_at is not None and facts.now - left_at >= WORKERS_GRACE_S
    due_at = facts.moved_at + facts.patience_s
    if facts.late_at is not None:
        due_at = max(due_at, facts.late_at)
    return Condition(
        is_draining=facts.is_draining,
        workers_problem=problem,
        is_starting=not facts.has_epoch and left_at is None,
        are_workers_gone=bool(facts.permanent_error) or (not facts.has_epoch and outage_is_long),
        is_progressing=not facts.has_work or facts.now < due_at,
    )


def encode_status(
    condition: Condition,
    *,
    core_incarnation: int,
    max_sequence_tokens: int,
    vocab_size: int,
    model_digest: bytes,
) -> engine.CoreStatus:
    """What frontends are told."""
    return engine.CoreStatus(
        core_incarnation=core_incarnation,
        is_accepting=not condition.refusal,
        not_accepting_reason=condition.refusal,
        is_draining=condition.is_draining,
        max_sequence_tokens=max_sequence_tokens,
        vocab_size=vocab_size,
        model_digest=model_digest,
        is_progressing=condition.is_progressing,
    )


def encode_snapshot(
    condition: Condition,
    *,
    readings: list[control.Reading],
    has_work: bool,
    moved_s: float,
    is_drained: bool,
) -> control.Snapshot:
    """What the supervisor is told. Work that just came after an idle hour is not an hour late."""
    return control.Snapshot(
        readings=readings,
        is_ready=not condition.not_ready_reason,
        not_ready_reason=condition.not_ready_reason,
        has_work=has_work,
        last_step_age_ms=round(1000 * moved_s),
        is_drained=is_drained,
    )
