"""Attention by FlashAttention-2 (arXiv:2307.08691): the package `flash-attn`, for GPUs from Ampere.

Its paged calls take blocks in multiples of 256 tokens. Decode rows use the call for caches, chunks
the one for rows of any length. The package must be installed: `choice.py` sees to that before this
file is imported.

Legend: N tokens, R rows, A query heads, D head_dim, W blocks in a table's row.
"""

from dataclasses import dataclass

import torch
from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache

from worker_svc.attention.backend import LayerCache
from worker_svc.execution.forward_batch import ForwardBatch

BLOCK_MULTIPLE = 256


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    block_table: torch.Tensor  # int32 [R, W]
    cache_seqlens: torch.Tensor  # int32 [R]


@dataclass(frozen=True, slots=True, eq=False)
class _Chunks:
    rows: _Rows
    cu_seqlens_q: torch.Tensor  # int32 [R + 1]
    cu_seqlens_k: torch.Tensor  # int32 [R + 1]
    most_queries: int
    most_keys: int


class Fa2Backend:
    """Binds batches of bfloat16 or float16."""

    def bind(self, batch: ForwardBatch, *, block_size: int) -> "Fa2StepAttention":
        """Cut the batch into its single rows and its chunk rows."""
        first = batch.num_single_rows
        singles = chunks = None
        if first:
            singles = _Rows(batch.block_table[:first], batch.cache_seqlens[:first])
        if batch.num_rows > first:
            rows = _Rows(batch.block_table[first:], batch.cache_seqlens[first:])
            lengths = rows.cache_seqlens.cumsum(0, dtype=torch.int32)
            chunks = _Chunks(
                rows=rows,
                cu_seqlens_q=batch.cu_seqlens_q[first:].contiguous(),
                cu_seqlens_k=torch.cat((torch.zeros_like(lengths[:1]), lengths)),
                most_queries=max(batch.query_lens[first:]),
                most_keys=rows.block_table.shape[1] * block_size,
            )
        return Fa2StepAttention(singles, chunks)


class Fa2StepAttention:
    """One step: `StoredAttention`."""

    def __init__(self, singles: _Rows | None, chunks: _Chunks | None) -> None:
        self._singles = singles
        self._chunks = chunks

    def attend(self, q: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """[N, A, D] of q [N, A, D] over keys that are stored, this step's included."""
        if self._chunks is None:
            return self._attend_singles(q, cache)
        out = self._attend_chunks(q, self._chunks, cache)
        if self._singles is not None:
            num_rows = self._singles.cache_seqlens.shape[0]
            # padding of decode rows may lie where the first chunk's tokens do
            token = torch.arange(num_rows, device=q.device)
            is_single = (token < self._chunks.cu_seqlens_q[0]).view(-1, 1, 1)
            found = self._attend_singles(q[:num_rows], cache)
            out[:num_rows] = found.where(is_single, out[:num_rows])
        return out

    def _attend_singles(self, q: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        assert self._singles is not None
        found: torch.Tensor = flash_attn_with_kvcache(
            q.unsqueeze(1),
            cache.keys,
            cache.values,
            cache_seqlens=self._singles.cache_seqlens,
            block_table=self._singles.block_table,
            causal=True,
        )
        return found.squeeze(1)

    def _attend_chunks(self, q: torch.Tensor, chunks: _Chunks, cache: LayerCache) -> torch.Tensor:
        found: torch.Tensor = flash_attn_varlen_func(
            q,
            cache.keys,
            cache.values,
            cu_seqlens_q=chunks.cu_seqlens_q,
            cu_seqlens_k=chunks.cu_seqlens_k,
            max_seqlen_q=chunks.most_queries,
            max_seqlen_k=chunks.most_keys,
            causal=True,
            block_table=chunks.rows.block_table,
        )
        return found
