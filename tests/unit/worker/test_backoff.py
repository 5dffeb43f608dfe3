"""How long a group that died waits for its next start."""

from worker_svc.backoff import FIRST_DELAY_S, LONGEST_DELAY_S, STABLE_AFTER_S, Backoff


def test_short_lives_double_the_delay_up_to_a_limit() -> None:
    backoff = Backoff()
    delays = [backoff.delay_after(1.0) for _ in range(10)]
    assert delays[:4] == [0.1, 0.2, 0.4, 0.8]
    assert delays[-1] == LONGEST_DELAY_S == max(delays)


def test_a_stable_life_begins_anew() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.delay_after(1.0)
    assert backoff.delay_after(STABLE_AFTER_S) == FIRST_DELAY_S
    assert backoff.delay_after(1.0) == 2 * FIRST_DELAY_S
