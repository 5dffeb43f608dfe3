"""Which part of which checkpoint tensor belongs where. Knows no file format.

A layer lists its shards; a loader fills them. A shard is a promise: the checkpoint has a tensor of
this name and full shape, and this rank copies `full[source]` into `destination`.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class WeightShard:
    """One rank's part of one checkpoint tensor."""

    name: str
    full_shape: tuple[int, ...]
    dim: int
    """The dimension that ranks split; the others are read whole."""
    start: int
    """First index of this rank's part in `dim`."""
    destination: torch.Tensor
    """Where the part goes: a view with the part's shape, in the model's dtype."""


def whole(name: str, destination: torch.Tensor) -> WeightShard:
    """A tensor that every rank holds whole."""
    return WeightShard(name, tuple(destination.shape), 0, 0, destination)


def split(name: str, destination: torch.Tensor, *, dim: int, full: int, start: int) -> WeightShard:
    """The part from `start` of a tensor that has `full` indexes in `dim`."""
    shape = list(destination.shape)
    shape[dim] = full
    return WeightShard(name, tuple(shape), dim, start, destination)
