"""The chunk budget follows measured step times."""

from scheduler_svc.core.pace import Pace


def measured(*, decode_us: int, prefill_token_us: int) -> Pace:
    pace = Pace(target_token_time_s=0.1)
    for _ in range(9):
        pace.observe(num_decode_rows=4, num_prefill_tokens=0, forward_us=decode_us)
    for _ in range(9):
        forward_us = decode_us + 100 * prefill_token_us
        pace.observe(num_decode_rows=4, num_prefill_tokens=100, forward_us=forward_us)
    return pace


def test_without_streams_a_step_takes_all_it_can() -> None:
    pace = measured(decode_us=10_000, prefill_token_us=1000)
    assert pace.prefill_budget(num_decode_rows=0, most=2048) == 2048


def test_beside_streams_prompts_get_the_time_that_is_left() -> None:
    pace = measured(decode_us=10_000, prefill_token_us=100)
    assert pace.prefill_budget(num_decode_rows=4, most=2048) == 900


def test_the_budget_never_exceeds_the_step() -> None:
    pace = measured(decode_us=10_000, prefill_token_us=100)
    assert pace.prefill_budget(num_decode_rows=4, most=50) == 50


def test_prompts_go_on_even_where_the_target_is_missed() -> None:
    pace = measured(decode_us=500_000, prefill_token_us=100)
    assert pace.prefill_budget(num_decode_rows=4, most=2048) == 16


def test_one_slow_step_changes_nothing() -> None:
    pace = measured(decode_us=10_000, prefill_token_us=100)
    pace.observe(num_decode_rows=4, num_prefill_tokens=100, forward_us=10_000_000)
    pace.observe(num_decode_rows=4, num_prefill_tokens=0, forward_us=10_000_000)
    assert pace.prefill_budget(num_decode_rows=4, most=2048) == 900


def test_expects_nothing_before_it_has_measured() -> None:
    pace = Pace(target_token_time_s=0.1)
    assert pace.prefill_s(1000) == 0.0
    pace.observe(num_decode_rows=0, num_prefill_tokens=100, forward_us=10_000)
    assert pace.prefill_s(1000) == 0.1
