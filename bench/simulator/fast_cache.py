"""KV blocks and prefix cache as counts by segment. Knows no block by itself.

A node stands for the blocks of one segment behind one text: from the first block that is not full
before the segment to the last one that is full at its end. Like the core's free list, nodes that
nobody holds are the cache, and the one released first is eaten first, from its end.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from bench.simulator.prompts import Segment, chain_key


@dataclass(slots=True, eq=False)
class Node:
    """Cached blocks of one segment, counted from its first."""

    key: int
    num_blocks: int
    num_cached: int = 0
    num_holders: int = 0


@dataclass(slots=True, eq=False)
class Holding:
    """What a running sequence has: nodes that others may share, and blocks of its own."""

    nodes: list[Node] = field(default_factory=list)
    num_private: int = 0


class FastCache:
    """Counts of one replica's blocks."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._nodes: dict[int, Node] = {}
        self._idle: OrderedDict[int, Node] = OrderedDict()
        self._num_idle = 0
        self._num_in_use = 0

    @property
    def num_available(self) -> int:
        """Blocks that can be taken now, cached ones included."""
        return self._num_blocks - self._num_in_use

    def match(self, segments: Iterable[Segment]) -> tuple[list[Node], int]:
        """The nodes that hold a prompt's beginning, and their blocks."""
        nodes, num_found, key = [], 0, 0
        for segment in segments:
            key = chain_key(key, segment)
            node = self._nodes.get(key)
            if node is None:
                break
            nodes.append(node)
            num_found += node.num_cached
            if node.num_cached < node.num_blocks:
                break
        return nodes, num_found

    def num_idle(self, nodes: list[Node]) -> int:
        """Blocks of these that nobody holds yet."""
        return sum(node.num_cached for node in nodes if not node.num_holders)

    def hold(self, nodes: list[Node], num_private: int) -> Holding:
        """Gives a sequence matched nodes, and so many blocks of its own."""
        for node in nodes:
            if not node.num_holders:
                del self._idle[node.key]
                self._num_idle -= node.num_cached
                self._num_in_use += node.num_cached
            node.num_holders += 1
        holding = Holding(list(nodes))
        self.grow(holding, num_private)
        return holding

    def grow(self, holding: Holding, count: int) -> None:
        """Gives a sequence more blocks of its own."""
        holding.num_private += count
        self._num_in_use += count
        self._eat(self._num_in_use + self._num_idle - self._num_blocks)

    def publish(self, holding: Holding, segments: Iterable[Segment]) -> None:
        """Makes a sequence's own blocks findable, as far as nobody else's are already."""
        key, start = 0, 0
        for segment in segments:
            key, stop = chain_key(key, segment), start + segment.num_tokens
            num_blocks = stop // self._block_size - start // self._block_size
            node = self._nodes.get(key)
            if node is None:
                node = self._nodes[key] = Node(key, num_blocks, num_holders=1)
                holding.nodes.append(node)
            if node in holding.nodes:
                moved = min(num_blocks - node.num_cached, holding.num_private)
                node.num_cached += moved
                holding.num_private -= moved
            start = stop

    def release(self, holding: Holding) -> None:
        """Takes everything back from a sequence."""
        self._num_in_use -= holding.num_private
        for node in reversed(holding.nodes):
            node.num_holders -= 1
            if not node.num_holders:
                self._num_in_use -= node.num_cached
                self._num_idle += node.num_cached
                self._idle[node.key] = node
        holding.nodes, holding.num_private = [], 0

    def _eat(self, count: int) -> None:
        # A block or two more than there are may be lent for a moment: rows grow before ends land.
        while count > 0 and self._idle:
            node = next(iter(self._idle.values()))
            eaten = min(node.num_cached, count)
            node.num_cached -= eaten
            self._num_idle -= eaten
            count -= eaten
            if not node.num_cached:
                del self._idle[node.key], self._nodes[node.key]
