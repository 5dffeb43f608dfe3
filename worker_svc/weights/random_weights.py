"""Fills a decoder with random numbers of a checkpoint's shapes, for benchmarks. Reads no file."""

import zlib
from collections.abc import Iterable

import torch

from worker_svc.layers.weight_shard import WeightShard

_SCALE = 0.02


def fill_randomly(shards: Iterable[WeightShard]) -> None:
    """Norms become 1, the rest normal; what several ranks hold whole is equal on all of them."""
    for shard in shards:
        place = shard.destination
        if "norm" in shard.name:
            place.fill_(1.0)
            continue
        generator = torch.Generator(device=place.device)
        generator.manual_seed(zlib.crc32(f"{shard.name} {shard.start}".encode()))
        place.normal_(std=_SCALE, generator=generator)
