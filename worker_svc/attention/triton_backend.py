"""Attention with this project's own Triton kernels, for any CUDA GPU.

Knows batches and their order, single rows before chunk rows; each kind is one launch. Triton must
be installed: check `worker_svc.kernels.support.require_triton` before importing this file.

Legend: N tokens, A query heads, K key heads, D head_dim.
"""

from dataclasses import dataclass
from typing import Self

import torch

from worker_svc.attention.backend import LayerCache
from worker_svc.execution.forward_batch import ForwardBatch
from worker_svc.kernels.decode_attention import (
    DecodeScratch,
    choose_num_splits,
    decode_attention,
)
from worker_svc.kernels.kv_store import store_kvcache
from worker_svc.kernels.prefill_attention import prefill_attention


class TritonBackend:
    """Binds batches; owns the memory between the splits of a row.

    Nothing is allocated or read back when a step is bound, so steps may be captured as graphs. All
    steps run on one stream, one after the other.
    """

    def __init__(self, *, scratch: DecodeScratch, num_kv_heads: int) -> None:
        self._scratch = scratch
        self._num_kv_heads = num_kv_heads

    @classmethod
    def create(
        cls,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        most_rows: int,
        device: torch.device,
    ) -> Self:
        """A backend for this rank's heads and for steps of up to `most_rows` rows."""
        scratch = DecodeScratch.for_rows(
            most_rows,
            num_kv_heads=num_kv_heads,
            group=num_heads // num_kv_heads,
            head_dim=head_dim,
            device=device,
        )
        return cls(scratch=scratch, num_kv_heads=num_kv_heads)

    def bind(self, batch: ForwardBatch, *, block_size: int) -> "TritonStepAttention":
        """Cut the batch into its single rows and its chunk rows."""
        num_singles = batch.num_single_rows
        num_splits = choose_num_splits(
            num_singles, self._num_kv_heads, device=batch.block_table.device
        )
        return TritonStepAttention(
            scratch=self._scratch,
            slot_mapping=batch.slot_mapping,
            singles=_Singles(
                block_table=batch.block_table[:num_singles],
                cache_seqlens=batch.cache_seqlens[:num_singles],
                num_splits=num_splits,
            ),
            chunks=_Chunks(
                block_table=batch.block_table[num_singles:],
                cu_seqlens_q=batch.cu_seqlens_q[num_singles:],
                cache_seqlens=batch.cache_seqlens[num_singles:],
                num_tokens=sum(batch.query_lens[num_singles:]),
            ),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Singles:
    block_table: torch.Tensor
    cache_seqlens: torch.Tensor
    num_splits: int


@dataclass(frozen=True, slots=True, eq=False)
class _Chunks:
    block_table: torch.Tensor
    cu_seqlens_q: torch.Tensor
    cache_seqlens: torch.Tensor
    num_tokens: int


class TritonStepAttention:
    """One step: `StepAttention`, or `attend` alone when a fused kernel has stored k and v."""

    def __init__(
        self,
        *,
        scratch: DecodeScratch,
        slot_mapping: torch.Tensor,
        singles: _Singles,
        chunks: _Chunks,
    ) -> None:
        self._scratch = scratch
        self._slot_mapping = slot_mapping
        self._singles = singles
        self._chunks = chunks

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cache: LayerCache
    ) -> torch.Tensor:
        """Take q [N, A, D], k and v [N, K, D]; return [N, A, D]."""
        store_kvcache(k, v, keys=cache.keys, values=cache.values, slot_mapping=self._slot_mapping)
        return self.attend(q, cache)

    def attend(self, q: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """[N, A, D] of q [N, A, D] over keys that are stored, this step's included.

        Tokens behind the last row's (padding of a prefill graph) are left as they are in memory.
        Chunk rows come second: their first tokens may lie where padding single rows put zeros.
        """
        out = q.new_empty(q.shape)
        singles, chunks = self._singles, self._chunks
        num_singles = singles.cache_seqlens.shape[0]
        decode_attention(
            q[:num_singles],
            cache.keys,
            cache.values,
            block_table=singles.block_table,
            cache_seqlens=singles.cache_seqlens,
            scratch=self._scratch,
            num_splits=singles.num_splits,
            out=out[:num_singles],
        )
        prefill_attention(
            q,
            cache.keys,
            cache.values,
            block_table=chunks.block_table,
            cu_seqlens_q=chunks.cu_seqlens_q,
            cache_seqlens=chunks.cache_seqlens,
            num_tokens=chunks.num_tokens,
            out=out,
        )
        return out
