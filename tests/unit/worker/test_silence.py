"""When a connected side takes the core to be gone: only what it could have heard counts."""

from worker_svc.dealer import Silence


def poll(silence: Silence, now: float, *, took_s: float, asked_s: float = 1.0) -> float:
    """One poll that hears nothing; returns the time after it."""
    silence.begin_poll(now)
    silence.end_poll(now + took_s, began=now, asked_s=asked_s)
    return now + took_s


def test_silence_adds_up_over_polls() -> None:
    silence = Silence(1.5)
    now = poll(silence, 0.0, took_s=1.0)
    assert silence.remaining_s == 0.5
    poll(silence, now, took_s=0.5, asked_s=0.5)
    assert silence.remaining_s == 0.0


def test_what_is_heard_starts_it_anew() -> None:
    silence = Silence(1.5)
    poll(silence, 0.0, took_s=1.0)
    silence.restart()
    assert silence.remaining_s == 1.5


def test_a_blocking_stretch_starts_it_anew() -> None:
    silence = Silence(1.5)
    now = poll(silence, 0.0, took_s=1.0)
    silence.begin_poll(now + 7.0)
    assert silence.remaining_s == 1.5


def test_short_work_between_polls_does_not() -> None:
    silence = Silence(1.5)
    now = poll(silence, 0.0, took_s=1.0)
    silence.begin_poll(now + 0.01)
    assert silence.remaining_s == 0.5


def test_a_process_that_was_stopped_during_a_poll_blames_nobody() -> None:
    silence = Silence(1.5)
    poll(silence, 0.0, took_s=60.0, asked_s=0.5)
    assert silence.remaining_s == 1.0
