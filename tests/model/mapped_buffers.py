"""Buffers of ranks that are processes of one machine: files that all of them map."""

from pathlib import Path

import torch

from worker_svc.kernels.rank_sum import RankBuffers

_MOST_BYTES = 1 << 18


def make_files(folder: Path, num_ranks: int) -> None:
    """One file a rank, before any rank maps it."""
    for rank in range(num_ranks):
        (folder / f"buffer-{rank}").write_bytes(bytes(_MOST_BYTES))


def map_files(
    folder: Path, rank: int, num_ranks: int, *, num_blocks: int, bytes_per_region: int
) -> tuple[RankBuffers, list[torch.Tensor]]:
    """The buffers as one rank sees them, and what must live as long."""
    maps = [
        torch.from_file(
            str(folder / f"buffer-{other}"), shared=True, size=_MOST_BYTES, dtype=torch.uint8
        )
        for other in range(num_ranks)
    ]
    buffers = RankBuffers(
        addresses=torch.tensor([memory.data_ptr() for memory in maps]),
        rank=rank,
        num_ranks=num_ranks,
        num_blocks=num_blocks,
        bytes_per_region=bytes_per_region,
    )
    assert buffers.num_bytes <= _MOST_BYTES
    return buffers, maps
