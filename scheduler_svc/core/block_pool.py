"""Block ids and who holds them. Knows nothing of tensors, sequences or steps.

Every block but 0 is in one of four states, and the counts of all four sum to the total:

- in use: at least one sequence holds it;
- fenced: nobody holds it, but a step in flight may still touch it for a sequence that has left;
- cached: nobody holds it, its content can be found; handed out, oldest first, when none is free;
- free: nobody holds it, its content is worth nothing.

Cached and free blocks can be handed out: the free list, in order of last use, is the cache.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable

from scheduler_svc.core.prefix_cache import Link, PrefixCache


class BlockPool:
    """Hands out blocks and takes them back. One that is handed out is unfindable at once."""

    def __init__(self, *, num_blocks: int, cache: PrefixCache) -> None:
        self.cache = cache
        self.num_blocks = num_blocks - 1
        self.num_in_use = 0
        self.num_fenced = 0
        self._holders = [0] * num_blocks
        self._fences = [0] * num_blocks
        # A stack; block 1 on top, for the eye. Block 0 is the worker's trash block.
        self._free = list(range(num_blocks - 1, 0, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        # What was cached when the cache was flushed; free blocks, too many to move them at once.
        self._flushed: deque[OrderedDict[int, None]] = deque()
        self._num_flushed = 0

    @property
    def num_free(self) -> int:
        """Blocks without content of worth."""
        return len(self._free) + self._num_flushed

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and a match can still revive."""
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that `take` can hand out now."""
        return len(self._free) + self._num_flushed + len(self._cached)

    def take(self, count: int) -> list[int] | None:
        """Hands out blocks to one holder, all or none; None means not now."""
        if count > self.num_available:
            return None
        split = max(0, len(self._free) - count)
        taken = self._free[split:]
        del self._free[split:]
        taken.reverse()
        while len(taken) < count:
            taken += self._take_oldest(count - len(taken))
        for block in taken:
            self._holders[block] = 1
        self.num_in_use += count
        return taken

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of these cached blocks `hold` would take from what is available."""
        return sum(block in self._cached for block in blocks)

    def hold(self, blocks: Iterable[int]) -> None:
        """Adds a holder to blocks just matched."""
        for block in blocks:
            if not self._holders[block]:
                self.num_in_use += 1
                if self._fences[block]:
                    self.num_fenced -= 1
                else:
                    del self._cached[block]
            self._holders[block] += 1

    def num_sole(self, blocks: Iterable[int]) -> int:
        """How many of these blocks have one holder only, so that its leaving frees them."""
        return sum(self._holders[block] == 1 for block in blocks)

    def release(self, blocks: Iterable[int], *, fence: bool) -> None:
        """Takes a holder off its blocks, in the order of their positions.

        With `fence`, they count as fenced until `lift` is called with the same blocks.
        """
        # Last first, so that the end of a chain is handed out before its beginning.
        for block in reversed(tuple(blocks)):
            assert self._holders[block] > 0, f"block {block} has no holder"
            self._holders[block] -= 1
            self._fences[block] += fence
            if not self._holders[block]:
                self.num_in_use -= 1
                if self._fences[block]:
                    self.num_fenced += 1
                else:
                    self._put_back(block)

    def lift(self, blocks: Iterable[int]) -> None:
        """Ends a fence: the steps in flight that could touch the blocks are done."""
        for block in reversed(tuple(blocks)):
            assert self._fences[block] > 0, f"block {block} has no fence"
            self._fences[block] -= 1
            if not self._fences[block] and not self._holders[block]:
                self.num_fenced -= 1
                self._put_back(block)

    def publish(self, block: int, parent: Link, tokens: bytes) -> Link:
        """Makes a full, held block findable; see `PrefixCache.publish`."""
        link, displaced = self.cache.publish(block, parent, tokens)
        if displaced is not None:
            self._lose_worth(displaced)
        return link

    def unpublish(self, blocks: Iterable[int]) -> None:
        """Makes blocks unfindable, whoever holds them."""
        blocks = list(blocks)
        self.cache.forget(blocks)
        for block in blocks:
            self._lose_worth(block)

    def flush(self) -> None:
        """Makes every block unfindable."""
        self.cache.flush()
        if self._cached:
            self._num_flushed += len(self._cached)
            self._flushed.append(self._cached)
            self._cached = OrderedDict()

    def _take_oldest(self, most: int) -> list[int]:
        """Takes flushed blocks of one pile, or else the cached ones that were used longest ago."""
        pile = self._flushed[0] if self._flushed else self._cached
        assert pile, "fewer blocks are cached than counted"
        oldest = [pile.popitem(last=False)[0] for _ in range(min(most, len(pile)))]
        self.cache.forget(oldest)
        if self._flushed:
            self._num_flushed -= len(oldest)
            if not pile:
                self._flushed.popleft()
        return oldest

    def _put_back(self, block: int) -> None:
        if self.cache.is_findable(block):
            self._cached[block] = None
        else:
            self._free.append(block)

    def _lose_worth(self, block: int) -> None:
        if block in self._cached:
            del self._cached[block]
            self._free.append(block)

    def check(self) -> None:
        """Raises AssertionError unless every block is in exactly one state; slow, for tests."""
        flushed = [block for pile in self._flushed for block in pile]
        free, cached = {*self._free, *flushed}, set(self._cached)
        assert self._num_flushed == len(flushed), "flushed blocks are miscounted"
        assert len(free) == self.num_free, "a block is free twice"
        assert not free & cached, "a block is free and cached"
        for block in range(1, self.num_blocks + 1):
            held, fenced = self._holders[block] > 0, self._fences[block] > 0
            assert (block in free) + (block in cached) + (held or fenced) == 1, f"block {block}"
            assert block not in free or not self.cache.is_findable(block), f"block {block}"
            assert block not in cached or self.cache.is_findable(block), f"block {block}"
        in_use = sum(count > 0 for count in self._holders)
        assert self.num_in_use == in_use, "blocks in use are miscounted"
        findable = sum(self.cache.is_findable(block) for block in range(1, self.num_blocks + 1))
        assert findable == len(self.cache), "findable blocks are miscounted"
        total = self.num_in_use + self.num_fenced + self.num_cached + self.num_free
        assert total == self.num_blocks, "block states do not sum to the total"
