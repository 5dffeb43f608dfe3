"""Parts of a recovery: what is counted, and that it is counted once."""

from scheduler_svc.engine.recovery import Recovery, Return


def test_a_restarted_group_is_counted_part_by_part_and_once() -> None:
    recovery = Recovery()
    recovery.lost(10.0)
    recovery.returned(Return(named_at=10.5, welcomed_at=12.0, ready_at=12.25))
    assert recovery.moved(13.0) == {
        "workers_respawn": 0.5,
        "workers_load": 1.5,
        "workers_prepare": 0.25,
        "workers_first_token": 0.75,
    }
    assert recovery.moved(14.0) is None


def test_ranks_that_lived_on_spawn_and_load_nothing() -> None:
    recovery = Recovery()
    recovery.lost(10.0)
    recovery.returned(Return(named_at=1.0, welcomed_at=10.5, ready_at=11.0))
    assert recovery.moved(12.0) == {"workers_prepare": 0.5, "workers_first_token": 1.0}


def test_a_second_loss_before_any_token_belongs_to_the_same_recovery() -> None:
    recovery = Recovery()
    recovery.lost(10.0)
    recovery.returned(Return(named_at=11.0, welcomed_at=12.0, ready_at=13.0))
    recovery.lost(14.0)
    assert recovery.moved(14.5) is None
    recovery.returned(Return(named_at=15.0, welcomed_at=16.0, ready_at=17.0))
    parts = recovery.moved(18.0)
    assert parts is not None
    assert parts["workers_respawn"] == 5.0


def test_the_first_epoch_is_no_recovery() -> None:
    recovery = Recovery()
    recovery.returned(Return(named_at=1.0, welcomed_at=2.0, ready_at=3.0))
    assert recovery.moved(4.0) is None
