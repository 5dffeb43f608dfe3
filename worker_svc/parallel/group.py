"""What the ranks of one model exchange. Knows tensors, no layer and no transport.

Every rank calls the same operations in the same order; that is the caller's promise.
"""

from typing import Protocol

import torch


class ParallelGroup(Protocol):
    """The ranks that share one model."""

    @property
    def rank(self) -> int:
        """This rank, 0..size-1."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, on every rank. May write into `tensor`."""
        ...

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """[size, *tensor.shape]: the tensor of every rank, in rank order, on every rank."""
        ...


class SingleRank:
    """A model on one rank: nothing to exchange, no process group."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor itself."""
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a view with a leading rank dimension of 1."""
        return tensor.unsqueeze(0)
