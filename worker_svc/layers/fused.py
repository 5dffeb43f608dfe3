"""Layers through kernels that do several things in one launch: the seams, not the kernels.

A decoder that is given a `FusedBackend` computes the same as one with a plain backend; what is one
launch there are several here. Knows tensors, no device and no file.

Legend: N tokens, H features, F features of the feed-forward layer, A query heads, K key heads, D
head_dim, L positions of the rotary table.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from worker_svc.attention.backend import LayerCache, StoredAttention, StoredBackend
from worker_svc.execution.forward_batch import ForwardBatch


@dataclass(frozen=True, slots=True, eq=False)
class HeadNorms:
    """The norms over each query head and each key head."""

    query_weight: torch.Tensor  # [D]
    key_weight: torch.Tensor  # [D]
    epsilon: float


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """Cosine and sine of every position."""

    cosine: torch.Tensor  # [L, D/2]
    sine: torch.Tensor  # [L, D/2]


class LayerKernels(Protocol):
    """What a device offers beyond torch."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, *, epsilon: float) -> torch.Tensor:
        """[N, H] -> [N, H]."""
        ...

    def sum_add_rms_norm(
        self, part: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of (sum over ranks of part) + residual, and that sum: [N, H] each."""
        ...

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 2F] -> [N, F]."""
        ...

    def finish_heads(
        self,
        heads: torch.Tensor,
        *,
        norms: HeadNorms | None,
        turns: Turns,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        cache: LayerCache,
    ) -> torch.Tensor:
        """Norm and turn the qkv product [N, A + 2K, D], store k and v; return q [N, A, D]."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class FusedStep:
    """One step's attention, from the qkv product to its result; the same for all layers."""

    kernels: LayerKernels
    attention: StoredAttention
    positions: torch.Tensor  # int64 [N]
    slot_mapping: torch.Tensor  # int64 [N]

    def __call__(
        self, heads: torch.Tensor, norms: HeadNorms | None, turns: Turns, cache: LayerCache
    ) -> torch.Tensor:
        """[N, A + 2K, D] -> [N, A, D]."""
        q = self.kernels.finish_heads(
            heads,
            norms=norms,
            turns=turns,
            positions=self.positions,
            slot_mapping=self.slot_mapping,
            cache=cache,
        )
        return self.attention.attend(q, cache)


@dataclass(frozen=True, slots=True, eq=False)
class FusedBackend:
    """A device's kernels and the attention that goes with them."""

    kernels: LayerKernels
    attention: StoredBackend

    def bind(self, batch: ForwardBatch, *, block_size: int) -> FusedStep:
        """Prepare a step."""
        return FusedStep(
            kernels=self.kernels,
            attention=self.attention.bind(batch, block_size=block_size),
            positions=batch.positions,
            slot_mapping=batch.slot_mapping,
        )
