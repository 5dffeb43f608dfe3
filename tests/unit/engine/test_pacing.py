"""When plans go out and when steps are overdue, on a clock of the test's own."""

import pytest

from scheduler_svc.engine.pacing import Pacer

FLOOR_S = 10.0


class Steps:
    """Steps one after the other, each sent when the one before it has ended."""

    def __init__(self) -> None:
        self.pacer = Pacer(deadline_floor_s=FLOOR_S)
        self.now = 1000.0

    def run(self, seconds: float, *, num_prefill_tokens: int = 0, times: int = 1) -> None:
        for _ in range(times):
            self.issue(num_prefill_tokens=num_prefill_tokens)
            self.now += seconds
            self.pacer.complete(self.now)

    def issue(self, *, num_prefill_tokens: int = 0) -> None:
        self.pacer.issue(num_decode_rows=4, num_prefill_tokens=num_prefill_tokens, now=self.now)

    @property
    def plan_due_s(self) -> float:
        """Seconds from now until the next plan goes out."""
        return self.pacer.plan_due_at() - self.now


def test_first_plan_and_steps_not_yet_measured_are_followed_at_once() -> None:
    steps = Steps()
    assert steps.plan_due_s < 0
    steps.issue()
    assert steps.plan_due_s < 0
    steps.pacer.forget_steps()
    steps.run(0.05, times=5)
    steps.issue(num_prefill_tokens=64)
    assert steps.plan_due_s < 0


def test_plan_goes_out_shortly_before_the_running_step_ends() -> None:
    steps = Steps()
    steps.run(0.05, times=20)
    steps.issue()
    assert 0.04 < steps.plan_due_s < 0.048
    steps.now += 0.03
    assert 0.01 < steps.plan_due_s < 0.018


def test_short_steps_are_followed_at_once() -> None:
    steps = Steps()
    steps.run(0.0015, times=20)
    steps.issue()
    assert steps.plan_due_s <= 0


def test_prompt_tokens_lengthen_the_prediction() -> None:
    steps = Steps()
    steps.run(0.02, times=20)
    steps.run(0.12, num_prefill_tokens=100, times=20)
    steps.issue(num_prefill_tokens=200)
    assert 0.18 < steps.plan_due_s < 0.22


def test_irregular_steps_are_followed_earlier() -> None:
    steady, irregular = Steps(), Steps()
    steady.run(0.05, times=40)
    for _ in range(20):
        irregular.run(0.03)
        irregular.run(0.07)
    steady.issue()
    irregular.issue()
    assert irregular.plan_due_s < steady.plan_due_s - 0.01


def test_prediction_follows_shorter_steps_at_once() -> None:
    steps = Steps()
    steps.run(1.0)  # the first step warms up
    steps.run(0.02, times=8)
    steps.issue()
    assert steps.plan_due_s < 0.02


def test_step_runs_from_the_end_of_the_one_before_it() -> None:
    steps = Steps()
    steps.issue()
    steps.issue(num_prefill_tokens=3)
    steps.now += 0.1
    assert steps.pacer.complete(steps.now).seconds == pytest.approx(0.1)
    steps.now += 0.3
    timing = steps.pacer.complete(steps.now)
    assert timing.seconds == pytest.approx(0.3)
    assert timing.kind == "mixed"


def test_deadline_is_the_floor_or_many_times_the_prediction() -> None:
    steps = Steps()
    assert steps.pacer.deadline() is None
    steps.issue()
    assert steps.pacer.deadline() == steps.now + 3 * FLOOR_S  # not measured yet
    steps.pacer.forget_steps()
    assert steps.pacer.deadline() is None
    steps.run(0.05, times=20)
    steps.issue()
    assert steps.pacer.deadline() == steps.now + FLOOR_S
    assert steps.pacer.late_at() == steps.now + FLOOR_S / 2
    steps.pacer.forget_steps()
    steps.run(2.0, times=60)
    steps.issue()
    deadline = steps.pacer.deadline()
    assert deadline is not None
    assert 30 < deadline - steps.now < 41


def test_second_step_out_gets_its_own_time() -> None:
    steps = Steps()
    steps.run(0.05, times=20)
    steps.issue()
    steps.issue()
    steps.now += 0.2
    steps.pacer.complete(steps.now)
    assert steps.pacer.deadline() == steps.now + FLOOR_S
