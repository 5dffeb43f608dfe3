"""Simulated time runs actions in order."""

from functools import partial

from bench.simulator.clock import Clock


def test_actions_run_in_the_order_of_their_moments() -> None:
    clock = Clock()
    seen: list[tuple[float, float]] = []

    def note(moment: float) -> None:
        seen.append((moment, clock.now))

    for moment in (3.0, 1.0, 2.0):
        clock.at(moment, partial(note, moment))
    clock.run()
    assert seen == [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]


def test_actions_of_one_moment_run_in_the_order_of_planning() -> None:
    clock = Clock()
    seen: list[str] = []
    for name in "abc":
        clock.at(1.0, partial(seen.append, name))
    clock.run()
    assert seen == ["a", "b", "c"]


def test_what_an_action_plans_for_the_past_happens_now() -> None:
    clock = Clock()
    seen: list[float] = []
    clock.at(2.0, lambda: clock.at(1.0, lambda: seen.append(clock.now)))
    clock.run()
    assert seen == [2.0]


def test_a_run_up_to_a_moment_leaves_later_actions_for_the_next() -> None:
    clock = Clock()
    seen: list[float] = []
    for moment in (1.0, 2.0, 3.0):
        clock.at(moment, partial(seen.append, moment))
    clock.run(until=2.0)
    assert seen == [1.0, 2.0]
    assert clock.now == 2.0
    clock.run()
    assert seen == [1.0, 2.0, 3.0]
