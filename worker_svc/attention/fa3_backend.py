"""Attention by FlashAttention-3 (arXiv:2407.08608), for Hopper GPUs: its operators called directly.

Two calls a layer in a mixed step, decode rows apart from chunks, since one call would cut both by
the same tiles. What the calls need to know of lengths ("scheduler metadata") is worked out once a
step, for all layers. `num_splits` is fixed by the number of rows, never guessed from lengths: a
graph replays what it was recorded with.

The package must be installed: `choice.py` sees to that before this file is imported.

Legend: N tokens, R rows, A query heads, K key heads, D head_dim, W blocks in a table's row.
"""

from dataclasses import dataclass

import flash_attn_3._C  # noqa: F401 - registers the operators with torch
import torch

from worker_svc.attention.backend import LayerCache
from worker_svc.execution.forward_batch import ForwardBatch

_MOST_SPLITS = 32
_FORWARD = torch.ops.flash_attn_3.fwd.default
_METADATA = torch.ops.flash_attn_3.get_scheduler_metadata.default


@dataclass(frozen=True, slots=True)
class Fa3Heads:
    """The shape that never changes."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    num_multiprocessors: int


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """What all layers of a step have in common, for one of the two calls."""

    block_table: torch.Tensor  # int32 [R, W]
    cache_seqlens: torch.Tensor  # int32 [R]
    cu_seqlens_q: torch.Tensor | None  # int32 [R + 1]; None: one query a row
    most_queries: int
    most_keys: int
    num_splits: int
    metadata: torch.Tensor


class Fa3Backend:
    """Binds batches of bfloat16 or float16."""

    def __init__(self, heads: Fa3Heads) -> None:
        self._heads = heads

    def bind(self, batch: ForwardBatch, *, block_size: int) -> "Fa3StepAttention":
        """Cut the batch into its single rows and its chunk rows; work out both calls' metadata."""
        num_singles = batch.num_single_rows
        singles = chunks = None
        if num_singles:
            singles = self._call(
                batch.block_table[:num_singles],
                batch.cache_seqlens[:num_singles],
                None,
                most_queries=1,
                num_splits=self._num_splits(num_singles),
                block_size=block_size,
            )
        if batch.num_rows > num_singles:
            chunks = self._call(
                batch.block_table[num_singles:],
                batch.cache_seqlens[num_singles:],
                batch.cu_seqlens_q[num_singles:],
                most_queries=max(batch.query_lens[num_singles:]),
                num_splits=1,
                block_size=block_size,
            )
        return Fa3StepAttention(singles, chunks, scale=self._heads.head_dim**-0.5)

    def _num_splits(self, num_rows: int) -> int:
        """As many as fill the device when each row has one tile for each key head."""
        tiles = num_rows * self._heads.num_kv_heads
        return max(1, min(self._heads.num_multiprocessors // tiles, _MOST_SPLITS))

    def _call(
        self,
        block_table: torch.Tensor,
        cache_seqlens: torch.Tensor,
        cu_seqlens_q: torch.Tensor | None,
        *,
        most_queries: int,
        num_splits: int,
        block_size: int,
    ) -> _Call:
        heads = self._heads
        most_keys = block_table.shape[1] * block_size
        metadata = _METADATA(
            cache_seqlens.shape[0],
            most_queries,
            most_keys,
            heads.num_heads,
            heads.num_kv_heads,
            heads.head_dim,
            heads.head_dim,
            heads.dtype,
            cache_seqlens,
            cu_seqlens_q=cu_seqlens_q,
            page_size=block_size,
            is_causal=True,
            num_splits=num_splits,
            pack_gqa=_packs_groups(cu_seqlens_q),
        )
        return _Call(
            block_table=block_table,
            cache_seqlens=cache_seqlens,
            cu_seqlens_q=cu_seqlens_q,
            most_queries=most_queries,
            most_keys=most_keys,
            num_splits=num_splits,
            metadata=metadata,
        )


class Fa3StepAttention:
    """One step: `StoredAttention`."""

    def __init__(self, singles: _Call | None, chunks: _Call | None, *, scale: float) -> None:
        self._singles = singles
        self._chunks = chunks
        self._scale = scale

    def attend(self, q: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """[N, A, D] of q [N, A, D] over keys that are stored, this step's included.

        Tokens behind the last row's (padding) are left as they are in memory.
        """
        out = torch.empty_like(q)
        if self._singles is not None:
            num_rows = self._singles.cache_seqlens.shape[0]
            # [R, 1, A, D]; padding rows, without keys, get zeros
            self._run(q[:num_rows].unsqueeze(1), cache, self._singles, out[:num_rows].unsqueeze(1))
        if self._chunks is not None:
            # last, for its tokens may lie where the decode rows' padding does
            self._run(q, cache, self._chunks, out)
        return out

    def _run(self, q: torch.Tensor, cache: LayerCache, call: _Call, out: torch.Tensor) -> None:
        _FORWARD(
            q,
            cache.keys,
            cache.values,
            out=out,
            cu_seqlens_q=call.cu_seqlens_q,
            seqused_k=call.cache_seqlens,
            max_seqlen_q=call.most_queries,
            max_seqlen_k=call.most_keys,
            page_table=call.block_table,
            softmax_scale=self._scale,
            is_causal=True,
            scheduler_metadata=call.metadata,
            num_splits=call.num_splits,
            pack_gqa=_packs_groups(call.cu_seqlens_q),
        )


def _packs_groups(cu_seqlens_q: torch.Tensor | None) -> bool | None:
    """Whether a key head's queries share a tile: always for single queries, else as it decides."""
    return True if cu_seqlens_q is None else None
