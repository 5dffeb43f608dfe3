"""Ranks on GPUs of one machine, over NCCL. They meet in a file: no port, no name lookup."""

from datetime import timedelta
from pathlib import Path
from typing import Self

import torch
import torch.distributed as dist


class NcclGroup:
    """A `ParallelGroup` whose operations can be recorded in graphs. `connect` makes it."""

    def __init__(self, *, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size

    @classmethod
    def connect(
        cls, *, rank: int, size: int, rendezvous: Path, device: torch.device, timeout_s: float
    ) -> Self:
        """Wait for all ranks at the file `rendezvous`, which must not exist before the first came.

        Each rank has a GPU of its own. `timeout_s` limits this wait. Raises `RuntimeError` when it
        passes.
        """
        dist.init_process_group(
            "nccl",
            init_method=rendezvous.absolute().as_uri(),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_s),
            device_id=device,
        )
        group = cls(rank=rank, size=size)
        group.all_reduce(torch.zeros(1, device=device))  # connects before anything is recorded
        group.all_gather(torch.zeros(1, device=device))
        return group

    @property
    def rank(self) -> int:
        """This rank, 0..size-1."""
        return self._rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._size

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, written into `tensor`."""
        dist.all_reduce(tensor)
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """[size, *tensor.shape]: the tensor of every rank, in rank order."""
        gathered = tensor.new_empty((self._size, *tensor.shape))
        dist.all_gather_into_tensor(gathered.view(-1), tensor.contiguous().view(-1))
        return gathered

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()
