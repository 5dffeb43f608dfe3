"""Whether a replica is ready, judged from what its processes report. Pure: no clock, no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_svc.control.hub import ChildRecord

# a process that has reported nothing for this long is not counted on
_REPORT_AGE_S = 3.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """Ready, or the reason why not."""

    is_ready: bool
    reason: str = ""


def judge_readiness(
    records: Sequence[ChildRecord], *, is_draining: bool, stall_limit_s: float, now: float
) -> Readiness:
    """Readiness means forward progress: the model is loaded, ranks are up, work that waits moves.

    `stall_limit_s` bounds how long work may wait without a finished step.
    """
    if is_draining:
        return Readiness(is_ready=False, reason="draining")
    core = next((record for record in records if record.role == "core"), None)
    if core is None:
        return Readiness(is_ready=False, reason="the core is not up")
    if reason := _not_ready_reason(core, now):
        return Readiness(is_ready=False, reason=reason)
    if core.snapshot.has_work and core.snapshot.last_step_age_ms > 1000 * stall_limit_s:
        return Readiness(is_ready=False, reason="work waits and no step has finished")
    frontends = [record for record in records if record.role == "frontend"]
    reasons = [_not_ready_reason(record, now) for record in frontends]
    if not any(reason == "" for reason in reasons):
        return Readiness(is_ready=False, reason=reasons[0] if reasons else "no frontend is up")
    return Readiness(is_ready=True)


def _not_ready_reason(record: ChildRecord, now: float) -> str:
    if record.snapshot_at == 0.0 or now - record.snapshot_at > _REPORT_AGE_S:
        return f"{record.name} does not report"
    if not record.snapshot.is_ready:
        return record.snapshot.not_ready_reason or f"{record.name} is not ready"
    return ""
