"""The budget of prompt tokens follows measured step times."""

from scheduler_svc.core.budget import Budget
from scheduler_svc.core.pace import Pace

DECODE_US = 10_000


def pace_of(*, target_token_time_s: float = 0.1, max_step_stretch: float = 1.7) -> Pace:
    pace = Pace(target_token_time_s=target_token_time_s, max_step_stretch=max_step_stretch)
    for _ in range(9):
        pace.observe(num_decode_rows=4, num_prefill_tokens=0, forward_us=DECODE_US)
    return pace


def budget(pace: Pace, *, num_prompts: int = 1, most: int = 2048) -> Budget:
    return pace.prefill_budget(num_decode_rows=4, num_prompts=num_prompts, most=most)


def run(pace: Pace, *, token_us: float, num_free_tokens: int = 0, num_steps: int = 200) -> Budget:
    """Steps that take what they may, long prompts and short ones in turn; then a budget."""
    for count in range(num_steps):
        given = budget(pace)
        num_tokens = given.num_long_tokens if count % 2 else given.num_tokens
        cost_us = token_us * max(num_tokens - num_free_tokens, 0)
        forward_us = round(DECODE_US + cost_us)
        pace.observe(num_decode_rows=4, num_prefill_tokens=num_tokens, forward_us=forward_us)
    while not (given := budget(pace)).num_tokens:
        pass
    return given


def test_without_streams_a_step_takes_all_it_can() -> None:
    pace = pace_of()
    run(pace, token_us=1000)
    assert pace.prefill_budget(num_decode_rows=0, num_prompts=1, most=2048) == Budget(2048, 2048)


def test_a_long_prompt_stretches_steps_so_far_and_short_ones_somewhat_further() -> None:
    given = run(pace_of(), token_us=100)
    assert 55 <= given.num_long_tokens <= 77  # 7 ms
    assert 125 <= given.num_tokens <= 170  # 15.5 ms


def test_tokens_that_cost_nothing_are_taken() -> None:
    given = run(pace_of(), token_us=100, num_free_tokens=150)
    assert 205 <= given.num_long_tokens <= 240


def test_without_a_stretch_prompts_get_the_time_that_the_target_leaves() -> None:
    given = run(pace_of(max_step_stretch=0.0), token_us=100)
    assert 850 <= given.num_tokens <= 990
    assert 850 <= given.num_long_tokens <= 990


def test_the_target_is_a_ceiling() -> None:
    given = run(pace_of(target_token_time_s=0.012), token_us=100)
    assert given.num_tokens <= 22


def test_prompts_that_wait_count_as_much_as_streams_that_run() -> None:
    pace = pace_of()
    run(pace, token_us=100)
    alone, crowded = budget(pace), budget(pace, num_prompts=41)
    assert crowded.num_long_tokens >= 10 * alone.num_long_tokens
    assert budget(pace, num_prompts=41, most=500) == Budget(500, 500)


def test_the_budget_never_exceeds_the_step() -> None:
    assert run(pace_of(), token_us=1).num_tokens <= 2048
    assert budget(pace_of(), most=50) == Budget(50, 50)


def test_prompts_go_on_even_where_every_limit_is_missed() -> None:
    given = run(pace_of(target_token_time_s=0.001), token_us=100_000)
    assert given.num_long_tokens == 16


def test_one_slow_step_changes_little_and_not_for_long() -> None:
    pace = pace_of()
    before = run(pace, token_us=100)
    tokens = before.num_long_tokens
    pace.observe(num_decode_rows=4, num_prefill_tokens=tokens, forward_us=10_000_000)
    pace.observe(num_decode_rows=4, num_prefill_tokens=0, forward_us=10_000_000)
    assert budget(pace).num_long_tokens >= 0.65 * tokens
    assert run(pace, token_us=100, num_steps=20).num_long_tokens >= 0.9 * tokens


def test_the_step_of_decode_rows_alone_is_measured_anew_now_and_then() -> None:
    pace = pace_of()
    budgets = []
    for _ in range(70):
        budgets.append(budget(pace).num_tokens)
        num_tokens = budgets[-1]
        pace.observe(num_decode_rows=4, num_prefill_tokens=num_tokens, forward_us=12_000)
    assert budgets.count(0) == 2


def test_expects_nothing_before_it_has_measured() -> None:
    pace = Pace(target_token_time_s=0.1, max_step_stretch=1.7)
    assert pace.prefill_s(1000) == 0.0
    pace.observe(num_decode_rows=0, num_prefill_tokens=100, forward_us=10_000)
    assert pace.prefill_s(1000) == 0.1
