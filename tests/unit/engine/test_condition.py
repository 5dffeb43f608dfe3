"""What the core says about itself."""

import dataclasses

from scheduler_svc.engine.condition import (
    WORKERS_GRACE_S,
    Facts,
    encode_snapshot,
    encode_status,
    judge,
)

WELL = Facts(
    now=1000.0,
    has_epoch=True,
    workers_condition="",
    permanent_error="",
    epoch_left_at=None,
    is_draining=False,
    has_work=False,
    moved_at=0.0,
    late_at=None,
    patience_s=5.0,
)


def test_idle_core_with_workers_is_ready_however_long_ago_it_worked() -> None:
    condition = judge(WELL)
    assert condition.refusal == ""
    assert condition.not_ready_reason == ""
    assert condition.is_progressing


def test_start_without_workers_is_not_ready_but_new_requests_may_wait() -> None:
    facts = dataclasses.replace(WELL, has_epoch=False, workers_condition="waiting for workers")
    condition = judge(facts)
    assert condition.not_ready_reason == "waiting for workers"
    assert condition.refusal == "waiting for workers"
    assert not condition.are_workers_gone


def test_restarting_workers_are_waited_for_within_their_grace() -> None:
    facts = dataclasses.replace(
        WELL, has_epoch=False, workers_condition="waiting", epoch_left_at=999.0
    )
    condition = judge(facts)
    assert condition.refusal == ""
    assert condition.not_ready_reason == "waiting"
    late = judge(dataclasses.replace(facts, now=999.0 + WORKERS_GRACE_S))
    assert late.are_workers_gone
    assert late.refusal == "waiting"


def test_permanent_error_is_said_first() -> None:
    condition = judge(dataclasses.replace(WELL, has_epoch=False, permanent_error="wrong flag"))
    assert condition.are_workers_gone
    assert condition.refusal == condition.not_ready_reason == "wrong flag"


def test_work_that_does_not_move_is_no_progress() -> None:
    waiting = dataclasses.replace(WELL, has_work=True, moved_at=996.0)
    assert judge(waiting).is_progressing
    stuck = judge(dataclasses.replace(waiting, moved_at=995.0))
    assert not stuck.is_progressing
    assert "no step" in stuck.not_ready_reason
    long_step = dataclasses.replace(waiting, moved_at=900.0, late_at=1001.0)
    assert judge(long_step).is_progressing


def test_draining_core_says_so_to_everybody() -> None:
    condition = judge(dataclasses.replace(WELL, is_draining=True))
    status = encode_status(
        condition, core_incarnation=5, max_sequence_tokens=64, vocab_size=100, model_digest=b"d"
    )
    assert status.is_draining
    assert not status.is_accepting
    assert "draining" in status.not_accepting_reason
    snapshot = encode_snapshot(
        condition, readings=[], has_work=True, moved_s=0.25, is_drained=False
    )
    assert not snapshot.is_ready
    assert snapshot.last_step_age_ms == 250
