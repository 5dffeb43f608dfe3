"""Readiness is forward progress, and says what is missing."""

import pytest

from octavo.internal.v1 import control_pb2 as control
from scheduler_svc.control.hub import ChildRecord
from scheduler_svc.supervisor.readiness import Readiness, judge_readiness

NOW = 100.0


def _record(role: str, *, reported_at: float = NOW, **snapshot: object) -> ChildRecord:
    fields = {"is_ready": True, **snapshot}
    return ChildRecord(
        role=role,
        name=role,
        pid=1,
        incarnation=1,
        identity=b"x",
        answered_at=NOW,
        snapshot=control.Snapshot(**fields),  # type: ignore[arg-type]
        snapshot_at=reported_at,
    )


def _judge(*records: ChildRecord, is_draining: bool = False) -> Readiness:
    return judge_readiness(records, is_draining=is_draining, stall_limit_s=10.0, now=NOW)


def test_core_and_one_frontend_make_a_replica_ready() -> None:
    assert _judge(_record("core"), _record("frontend")).is_ready
    broken = _record("frontend", is_ready=False)
    assert _judge(_record("core"), broken, _record("frontend")).is_ready


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([_record("frontend")], "core"),
        ([_record("core")], "frontend"),
        ([_record("core", reported_at=NOW - 4), _record("frontend")], "does not report"),
        ([_record("core", reported_at=0.0), _record("frontend")], "does not report"),
        (
            [_record("core", is_ready=False, not_ready_reason="no ranks"), _record("frontend")],
            "no ranks",
        ),
        (
            [_record("core", has_work=True, last_step_age_ms=10_001), _record("frontend")],
            "no step has finished",
        ),
        ([_record("core"), _record("frontend", is_ready=False)], "frontend is not ready"),
    ],
)
def test_what_is_missing_is_named(records: list[ChildRecord], reason: str) -> None:
    readiness = _judge(*records)
    assert not readiness.is_ready
    assert reason in readiness.reason


def test_an_idle_core_may_have_an_old_step() -> None:
    idle = _record("core", has_work=False, last_step_age_ms=10**9)
    assert _judge(idle, _record("frontend")).is_ready


def test_a_drain_is_not_ready() -> None:
    assert _judge(_record("core"), _record("frontend"), is_draining=True).reason == "draining"
