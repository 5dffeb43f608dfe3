"""Memory for keys and values, in blocks. Knows sizes, not who holds a block."""

from dataclasses import dataclass
from typing import Self

import torch

from worker_svc.attention.backend import LayerCache
from worker_svc.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The shape of one rank's cache. `num_blocks` includes block 0, the trash block."""

    num_layers: int
    num_blocks: int
    block_size: int
    num_kv_heads: int
    """KV heads of this rank."""
    head_dim: int
    dtype: torch.dtype

    @classmethod
    def of_model(
        cls,
        spec: ModelSpec,
        *,
        num_blocks: int,
        block_size: int,
        num_ranks: int,
        dtype: torch.dtype,
    ) -> Self:
        """The layout on each of `num_ranks` ranks that share the model."""
        return cls(
            num_layers=spec.num_layers,
            num_blocks=num_blocks,
            block_size=block_size,
            num_kv_heads=max(1, spec.num_kv_heads // num_ranks),
            head_dim=spec.head_dim,
            dtype=dtype,
        )

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers, keys and values."""
        values = self.block_size * self.num_kv_heads * self.head_dim
        return 2 * self.num_layers * values * self.dtype.itemsize

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole cache."""
        return self.num_blocks * self.bytes_per_block

    def num_blocks_within(self, num_bytes: int) -> int:
        """How many blocks of this shape fit, the trash block included; 0 when none does."""
        return max(0, num_bytes) // self.bytes_per_block


@dataclass(frozen=True, slots=True, eq=False)
class KVCache:
    """The cache itself, one entry a layer."""

    layout: KVLayout
    layers: tuple[LayerCache, ...]

    @classmethod
    def allocate(cls, layout: KVLayout, *, device: torch.device) -> Self:
        """Take the memory, as zeros: padding may read the trash block, which must be numbers."""
        block = (layout.num_blocks, layout.block_size, layout.num_kv_heads, layout.head_dim)
        shape = (2, layout.num_layers, *block)
        keys, values = torch.zeros(shape, dtype=layout.dtype, device=device).unbind(0)
        layers = tuple(
            LayerCache(keys=k, values=v)
            for k, v in zip(keys.unbind(0), values.unbind(0), strict=True)
        )
        return cls(layout=layout, layers=layers)
