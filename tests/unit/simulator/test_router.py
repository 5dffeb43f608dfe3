"""Routers choose replicas as they say."""

import numpy as np
import pytest

from bench.simulator.jobs import Conversation, Job, Turn
from bench.simulator.prompts import Segment
from bench.simulator.router import LeastLoaded, Loads, PrefixAware, RoundRobin

NUM_REPLICAS = 8
IDLE: Loads = np.zeros(NUM_REPLICAS, np.int64)


def job(*segments: tuple[int, int]) -> Job:
    message = tuple(Segment(key, num_tokens) for key, num_tokens in segments)
    return Job(1, Conversation(0.0, (Turn(message, Segment(99, 10)),)), 0, message)


def test_round_robin_takes_one_after_the_other() -> None:
    router = RoundRobin(3)
    assert [router.choose(job((1, 100)), IDLE[:3]) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_least_loaded_takes_the_one_with_the_least_and_rotates_among_equals() -> None:
    router = LeastLoaded(4)
    assert router.choose(job((1, 100)), np.array([3, 2, 0, 1])) == 2
    assert [router.choose(job((1, 100)), IDLE[:4]) for _ in range(4)] == [3, 0, 1, 2]


def test_a_conversation_stays_where_it_began() -> None:
    router = PrefixAware(NUM_REPLICAS)
    home = router.choose(job((1, 300), (2, 50)), IDLE)
    assert router.choose(job((1, 300), (2, 50), (3, 200), (4, 80)), IDLE) == home


def test_the_longest_known_beginning_decides() -> None:
    router = PrefixAware(NUM_REPLICAS, guard_slack=0)
    home = router.choose(job((1, 300)), IDLE)
    busy = IDLE.copy()
    busy[home] = 100
    away = router.choose(job((1, 300), (2, 100)), busy)
    assert away != home
    assert router.choose(job((1, 300), (2, 100), (3, 100)), IDLE) == away


def test_a_replica_with_too_much_to_do_is_left_alone_until_it_has_less() -> None:
    router = PrefixAware(NUM_REPLICAS, guard_factor=1.5, guard_slack=4)
    home = router.choose(job((1, 300)), IDLE)
    loads = np.full(NUM_REPLICAS, 8)
    loads[home] = 16  # the mean is 9: up to 17.5 is bearable
    assert router.choose(job((1, 300)), loads) == home
    loads[home] = 19
    assert router.choose(job((1, 300)), loads) != home


def test_routers_agree_on_unknown_prompts_and_spread_them() -> None:
    first, second = PrefixAware(NUM_REPLICAS), PrefixAware(NUM_REPLICAS)
    jobs = [job((key, 200)) for key in range(400)]
    chosen = [first.choose(each, IDLE) for each in jobs]
    assert chosen == [second.choose(each, IDLE) for each in reversed(jobs)][::-1]
    counts = np.bincount(chosen, minlength=NUM_REPLICAS)
    assert counts.min() > 20


def test_one_more_replica_moves_few_prompts() -> None:
    jobs = [job((key, 200)) for key in range(1000)]
    before, after = PrefixAware(9), PrefixAware(10)
    moved = sum(
        before.choose(each, np.zeros(9, np.int64)) != after.choose(each, np.zeros(10, np.int64))
        for each in jobs
    )
    assert 20 < moved < 250


def test_the_pieces_remembered_are_bounded() -> None:
    router = PrefixAware(NUM_REPLICAS, max_pieces=10)
    for key in range(100):
        router.choose(job((key, 640)), IDLE)
    assert len(router._replica_by_piece) == 10


@pytest.mark.parametrize("load", [0, 7])
def test_a_prompt_shorter_than_a_piece_is_routed_too(load: int) -> None:
    chosen = PrefixAware(NUM_REPLICAS).choose(job((1, 5)), np.full(NUM_REPLICAS, load))
    assert 0 <= chosen < NUM_REPLICAS
