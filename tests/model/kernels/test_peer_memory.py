"""Which sums go through memory that ranks share, and that ranks without it all say so."""

from dataclasses import dataclass

import pytest
import torch

from worker_svc.kernels.rank_sum import RankBuffers
from worker_svc.parallel.peer_memory import (
    KIB,
    PeerMemory,
    PeerMemoryUnavailableError,
    SwitchOver,
)

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Machines:
    """Ranks of which each second one gathers another number than the first."""

    size: int
    differ: bool = False
    rank: int = 0

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        raise AssertionError("nothing to sum")

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack([tensor + (rank % 2) * self.differ for rank in range(self.size)])


@pytest.mark.parametrize(
    ("machines", "reason"),
    [
        (Machines(3), "3 ranks; it is for 2, 4, 8"),
        (Machines(16), "16 ranks"),
        (Machines(2, differ=True), "several machines"),
    ],
)
def test_ranks_that_cannot_share_memory_say_why(machines: Machines, reason: str) -> None:
    with pytest.raises(PeerMemoryUnavailableError, match=reason):
        PeerMemory.connect(machines, device=CPU)


def test_large_sums_and_empty_ones_are_left_to_others() -> None:
    buffers = RankBuffers(
        addresses=torch.zeros(2, dtype=torch.int64),
        rank=0,
        num_ranks=2,
        num_blocks=4,
        bytes_per_region=8 * KIB,
    )
    peers = PeerMemory(buffers, SwitchOver(one_shot=4 * KIB, two_shot=16 * KIB), owner=None)
    rows = torch.zeros(64, 256)  # 1 KiB each
    assert peers.takes(rows[:1])
    assert peers.takes(rows[:16])
    assert not peers.takes(rows[:17])
    assert not peers.takes(rows[:0])
