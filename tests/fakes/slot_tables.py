"""Block tables of slots, as a core would hand the blocks out. Knows no plan and no tensor."""

import numpy as np

from worker_svc.batch_step import Int32s, NewBlocks


class SlotTables:
    """`table` [slots, blocks of a slot]; block 0 is nobody's."""

    def __init__(
        self, *, num_slots: int, num_blocks: int, block_size: int, blocks_per_slot: int
    ) -> None:
        self.table: Int32s = np.zeros((num_slots, blocks_per_slot), np.int32)
        self._block_size = block_size
        self._free = np.random.default_rng(0).permutation(np.arange(1, num_blocks)).tolist()
        self._num_blocks = [0] * num_slots

    def start(self, slot: int) -> None:
        """Take the slot's blocks away."""
        self._free = self.table[slot, : self._num_blocks[slot]].tolist() + self._free
        self._num_blocks[slot] = 0
        self.table[slot] = 0

    def grow(self, ends: dict[int, int]) -> NewBlocks:
        """Blocks for positions below the slots' ends."""
        found: list[tuple[int, int, int]] = []
        for slot in sorted(ends):
            while self._num_blocks[slot] * self._block_size < ends[slot]:
                block, index = self._free.pop(), self._num_blocks[slot]
                self.table[slot, index] = block
                self._num_blocks[slot] += 1
                found.append((slot, index, block))
        columns = np.array(found, np.int32).reshape(-1, 3)
        return NewBlocks(columns[:, 0].copy(), columns[:, 1].copy(), columns[:, 2].copy())
