"""Every block is in one state, and goes back exactly once."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.core.block_pool import BlockPool
from scheduler_svc.core.prefix_cache import PrefixCache

SIZE = 2


def new_pool(num_blocks: int = 9) -> BlockPool:
    cache = PrefixCache(num_blocks=num_blocks, block_size=SIZE, root=b"root")
    return BlockPool(num_blocks=num_blocks, cache=cache)


def piece(number: int) -> bytes:
    return number.to_bytes(4 * SIZE, "little")


def take(pool: BlockPool, count: int) -> list[int]:
    blocks = pool.take(count)
    assert blocks is not None
    return blocks


def publish(pool: BlockPool, blocks: list[int], first: int) -> None:
    link = pool.cache.root("tenant")
    for offset, block in enumerate(blocks):
        link = pool.publish(block, link, piece(first + offset))


def find(pool: BlockPool, first: int, count: int) -> list[int]:
    content = b"".join(piece(first + offset) for offset in range(count))
    return pool.cache.match(pool.cache.root("tenant"), content, max_blocks=count).blocks


def test_the_trash_block_is_never_handed_out() -> None:
    pool = new_pool()
    assert sorted(take(pool, 8)) == list(range(1, 9))
    assert pool.take(1) is None


def test_refused_take_changes_nothing() -> None:
    pool = new_pool()
    take(pool, 5)
    assert pool.take(4) is None
    assert (pool.num_in_use, pool.num_free) == (5, 3)
    pool.check()


def test_cached_blocks_are_handed_out_last_and_oldest_first() -> None:
    """BM-04: a full cache blocks nobody."""
    pool = new_pool()
    old, young = take(pool, 2), take(pool, 2)
    publish(pool, old, 10)
    publish(pool, young, 20)
    pool.release(old, fence=False)
    pool.release(young, fence=False)
    assert (pool.num_cached, pool.num_free, pool.num_available) == (4, 4, 8)
    take(pool, 4)
    assert find(pool, 10, 2) == old
    take(pool, 1)
    assert find(pool, 10, 2) == old[:1], "the end of a chain goes before its beginning"
    assert find(pool, 20, 2) == young


def test_a_block_handed_out_cannot_be_found() -> None:
    """PC-04: handing out and forgetting are one operation."""
    pool = new_pool(num_blocks=3)
    blocks = take(pool, 2)
    publish(pool, blocks, 10)
    pool.release(blocks, fence=False)
    taken = take(pool, 1)
    assert not pool.cache.is_findable(taken[0])
    assert taken[0] not in find(pool, 10, 2)


def test_a_match_revives_cached_blocks() -> None:
    pool = new_pool()
    blocks = take(pool, 2)
    publish(pool, blocks, 10)
    pool.release(blocks, fence=False)
    found = find(pool, 10, 2)
    assert pool.num_idle(found) == 2
    pool.hold(found)
    assert (pool.num_in_use, pool.num_cached) == (2, 0)
    assert pool.num_idle(found) == 0
    pool.check()


def test_shared_blocks_go_back_with_their_last_holder() -> None:
    pool = new_pool()
    blocks = take(pool, 2)
    publish(pool, blocks, 10)
    pool.hold(blocks)
    assert pool.num_sole(blocks) == 0
    pool.release(blocks, fence=False)
    assert (pool.num_in_use, pool.num_cached) == (2, 0)
    pool.release(blocks, fence=False)
    assert (pool.num_in_use, pool.num_cached) == (0, 2)


def test_fenced_blocks_are_counted_and_handed_out_only_after_the_fence() -> None:
    """BM-06: blocks that a step in flight may touch are released once, after it."""
    pool = new_pool(num_blocks=3)
    blocks = take(pool, 2)
    pool.release(blocks, fence=True)
    assert (pool.num_in_use, pool.num_fenced, pool.num_available) == (0, 2, 0)
    assert pool.take(1) is None
    pool.lift(blocks)
    assert (pool.num_fenced, pool.num_free) == (0, 2)
    pool.check()


def test_a_fenced_block_can_be_held_again_meanwhile() -> None:
    pool = new_pool()
    blocks = take(pool, 1)
    publish(pool, blocks, 10)
    pool.release(blocks, fence=True)
    pool.hold(blocks)
    assert (pool.num_in_use, pool.num_fenced) == (1, 0)
    pool.lift(blocks)
    assert pool.num_in_use == 1
    pool.release(blocks, fence=False)
    assert pool.num_cached == 1
    pool.check()


def test_releasing_what_nobody_holds_is_our_own_error() -> None:
    pool = new_pool()
    blocks = take(pool, 1)
    pool.release(blocks, fence=False)
    with pytest.raises(AssertionError, match="has no holder"):
        pool.release(blocks, fence=False)


def test_unpublished_blocks_are_worth_nothing() -> None:
    pool = new_pool()
    held, cached = take(pool, 1), take(pool, 1)
    publish(pool, held, 10)
    publish(pool, cached, 20)
    pool.release(cached, fence=False)
    pool.unpublish(held + cached)
    assert (pool.num_in_use, pool.num_cached, pool.num_free) == (1, 0, 7)
    assert find(pool, 10, 1) == []
    pool.check()


def test_flush_empties_the_cache_and_leaves_holders_alone() -> None:
    pool = new_pool()
    held, cached = take(pool, 2), take(pool, 3)
    publish(pool, held, 10)
    publish(pool, cached, 20)
    pool.release(cached, fence=False)
    pool.flush()
    assert (pool.num_in_use, pool.num_cached, pool.num_free) == (2, 0, 6)
    assert len(pool.cache) == 0
    assert find(pool, 10, 2) == find(pool, 20, 3) == []
    pool.check()


def test_flushed_blocks_are_handed_out_before_cached_ones_and_cached_anew() -> None:
    pool = new_pool(num_blocks=6)
    for first in (10, 20):
        blocks = take(pool, 2)
        publish(pool, blocks, first)
        pool.release(blocks, fence=False)
        if first == 10:
            pool.flush()
    assert (pool.num_free, pool.num_cached) == (3, 2)
    blocks = take(pool, 3)
    assert len(find(pool, 20, 2)) == 2
    publish(pool, blocks, 10)
    assert find(pool, 10, 3) == blocks
    pool.release(blocks, fence=False)
    pool.check()
    pool.flush()
    pool.flush()
    assert len(take(pool, 5)) == 5
    pool.check()


class NaivePool:
    """A pool beside lists of who holds what."""

    def __init__(self, random: Random, num_blocks: int) -> None:
        self.random = random
        self.pool = new_pool(num_blocks)
        self.holders: list[list[int]] = []
        self.fenced: list[list[int]] = []
        self.num_published = 0

    def take(self) -> None:
        count = self.random.randint(1, 3)
        blocks = self.pool.take(count)
        if blocks is not None:
            assert len(set(blocks)) == count
            assert not any(block in held for held in self.holders for block in blocks)
            assert not any(block in held for held in self.fenced for block in blocks)
            assert not any(self.pool.cache.is_findable(block) for block in blocks)
            self.holders.append(blocks)

    def publish(self) -> None:
        blocks = self.random.choice(self.holders) if self.holders else []
        if not any(self.pool.cache.is_findable(block) for block in blocks):
            self.num_published += 1
            publish(self.pool, blocks, self.random.choice([10, 100 * self.num_published]))

    def flush(self) -> None:
        self.pool.flush()
        assert len(self.pool.cache) == 0
        assert find(self.pool, 10, 3) == []

    def match(self) -> None:
        blocks = find(self.pool, 10, 3)
        if blocks:
            self.pool.hold(blocks)
            self.holders.append(blocks)

    def release(self) -> None:
        if self.holders:
            blocks = self.holders.pop(self.random.randrange(len(self.holders)))
            fence = self.random.random() < 0.5
            self.pool.release(blocks, fence=fence)
            if fence:
                self.fenced.append(blocks)

    def lift(self) -> None:
        if self.fenced:
            self.pool.lift(self.fenced.pop(0))

    def check(self) -> None:
        self.pool.check()
        held = {block for blocks in self.holders for block in blocks}
        assert self.pool.num_in_use == len(held)


@given(st.randoms(use_true_random=False), st.integers(3, 10))
def test_blocks_are_never_lost_nor_owned_twice(random: Random, num_blocks: int) -> None:
    """PC-04, PC-10: against a naive model of holders, whatever the order of events."""
    naive = NaivePool(random, num_blocks)
    happenings = [naive.take, naive.publish, naive.match, naive.release, naive.lift] * 3
    happenings.append(naive.flush)
    for _ in range(60):
        random.choice(happenings)()
        naive.check()
    while naive.holders:
        naive.release()
    while naive.fenced:
        naive.lift()
    assert naive.pool.num_available == num_blocks - 1
