"""The fast cache counts blocks as the core's pool does."""

from hypothesis import given
from hypothesis import strategies as st

from bench.simulator.fast_cache import FastCache, Holding
from bench.simulator.prompts import Segment

SIZE = 16
INSTRUCTIONS, QUESTION, OTHER = Segment(1, 320), Segment(2, 50), Segment(3, 60)


def serve(cache: FastCache, *segments: Segment) -> tuple[Holding, int]:
    """Computes a prompt that is given room; what was found in the cache."""
    nodes, num_found = cache.match(segments)
    num_tokens = sum(segment.num_tokens for segment in segments)
    holding = cache.hold(nodes, -(-num_tokens // SIZE) - num_found)
    cache.publish(holding, segments)
    return holding, num_found


def test_a_prompt_served_before_is_found_up_to_its_last_full_block() -> None:
    cache = FastCache(num_blocks=100, block_size=SIZE)
    holding, _ = serve(cache, INSTRUCTIONS, QUESTION)
    assert cache.num_available == 100 - 24
    cache.release(holding)
    assert cache.num_available == 100
    assert cache.match([INSTRUCTIONS, QUESTION])[1] == 370 // SIZE
    assert cache.match([INSTRUCTIONS, OTHER])[1] == 20
    assert cache.match([QUESTION])[1] == 0


def test_what_two_hold_counts_once() -> None:
    cache = FastCache(num_blocks=100, block_size=SIZE)
    serve(cache, INSTRUCTIONS, QUESTION)
    _, num_found = serve(cache, INSTRUCTIONS, OTHER)
    assert num_found == 20
    assert cache.num_available == 100 - 24 - 4


def test_two_that_compute_the_same_at_once_have_it_twice_until_they_end() -> None:
    cache = FastCache(num_blocks=100, block_size=SIZE)
    first, second = cache.hold([], 24), cache.hold([], 24)
    for holding in (first, second):
        cache.publish(holding, [INSTRUCTIONS, QUESTION])
    assert cache.num_available == 100 - 48
    cache.release(first)
    cache.release(second)
    assert cache.match([INSTRUCTIONS, QUESTION])[1] == 23


def test_the_end_of_what_was_released_first_is_eaten_first() -> None:
    cache = FastCache(num_blocks=30, block_size=SIZE)
    holding, _ = serve(cache, INSTRUCTIONS, QUESTION)
    cache.release(holding)
    cache.hold([], 10)  # of 30, 7 were never used
    assert cache.match([INSTRUCTIONS, QUESTION])[1] == 20
    cache.hold([], 5)
    assert cache.match([INSTRUCTIONS, QUESTION])[1] == 15


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=40))
def test_blocks_are_neither_lost_nor_made(steps: list[tuple[int, int, bool]]) -> None:
    cache = FastCache(num_blocks=60, block_size=SIZE)
    prompts = [Segment(10 + key, 40 * (key + 1)) for key in range(4)]
    held: list[Holding] = []
    for first, second, releases in steps:
        segments = [prompts[first], prompts[second]]
        nodes, num_found = cache.match(segments)
        num_blocks = -(-sum(each.num_tokens for each in segments) // SIZE)
        if num_blocks - num_found + cache.num_idle(nodes) <= cache.num_available:
            held.append(serve(cache, *segments)[0])
        if releases and held:
            cache.release(held.pop(0))
        assert 0 <= cache.num_available <= 60
        shared = {id(node): node.num_cached for each in held for node in each.nodes}
        num_held = sum(shared.values()) + sum(each.num_private for each in held)
        assert cache.num_available == 60 - num_held
    for each in held:
        cache.release(each)
    assert cache.num_available == 60
