"""Attention by FlashAttention-3 (arXiv:2407.08608) for Hopper GPUs: its operators called directly.

Two launches a layer in a mixed step, decode rows apart from chunks, since one call would cut both
by the same tiles. What a call needs to know of lengths ("scheduler metadata") is worked out once a
step, for all layers. `num_splits` is fixed by the number of rows, never guessed from lengths: a
graph replays what it was recorded with.

For most decode rows this project's own kernel is the faster one. Measured on an H200: 256 rows of
1,024 keys take it 252 us against 300, a single row of Qwen3-0.6B 9.3 against 11.0; with four
queries a key head, a few rows are better off with FlashAttention (12.5 against 10.8).

The package must be installed: `choice.py` sees to that before this file is imported.

Legend: N tokens, R rows, A query heads, K key heads, D head_dim, W blocks in a table's row.
"""

from dataclasses import dataclass

import flash_attn_3._C  # noqa: F401 - registers the operators with torch
import torch

from worker_svc.attention.backend import LayerCache
from worker_svc.execution.forward_batch import ForwardBatch
from worker_svc.kernels.decode_attention import DecodeScratch, choose_num_splits, decode_attention

_MOST_SPLITS = 32
_FEWEST_OWN_ITEMS = 32  # rows times key heads
_MOST_SMALL_GROUP = 2
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

    @property
    def group(self) -> int:
        """Query heads of a key head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Some rows of a batch."""

    block_table: torch.Tensor  # int32 [R, W]
    cache_seqlens: torch.Tensor  # int32 [R]

    @property
    def num_rows(self) -> int:
        return self.cache_seqlens.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """What all layers of a step have in common for one call of the operator."""

    rows: _Rows
    cu_seqlens_q: torch.Tensor | None  # int32 [R + 1]; None: one query a row
    most_queries: int
    most_keys: int
    num_splits: int
    metadata: torch.Tensor

    def run(self, q: torch.Tensor, cache: LayerCache, out: torch.Tensor) -> None:
        """One query a row: q and out are [R, 1, A, D]; else [N, A, D]."""
        _FORWARD(
            q,
            cache.keys,
            cache.values,
            out=out,
            cu_seqlens_q=self.cu_seqlens_q,
            seqused_k=self.rows.cache_seqlens,
            max_seqlen_q=self.most_queries,
            max_seqlen_k=self.most_keys,
            page_table=self.rows.block_table,
            softmax_scale=q.shape[-1] ** -0.5,
            is_causal=True,
            scheduler_metadata=self.metadata,
            num_splits=self.num_splits,
            pack_gqa=_packs_groups(self.cu_seqlens_q),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _OwnCall:
    """The same for single rows by our own kernel."""

    rows: _Rows
    num_splits: int
    scratch: DecodeScratch

    def run(self, q: torch.Tensor, cache: LayerCache, out: torch.Tensor) -> None:
        """[R, A, D] each; padding rows, without keys, get zeros."""
        decode_attention(
            q,
            cache.keys,
            cache.values,
            block_table=self.rows.block_table,
            cache_seqlens=self.rows.cache_seqlens,
            scratch=self.scratch,
            num_splits=self.num_splits,
            out=out,
        )


class Fa3Backend:
    """Binds batches of bfloat16 or float16."""

    def __init__(self, heads: Fa3Heads, *, scratch: DecodeScratch) -> None:
        """`scratch` is for decode rows, as many as a step may have."""
        self._heads = heads
        self._scratch = scratch

    def bind(self, batch: ForwardBatch, *, block_size: int) -> "Fa3StepAttention":
        """Cut the batch into its single rows and its chunk rows; prepare what each needs."""
        first = batch.num_single_rows
        singles = _Rows(batch.block_table[:first], batch.cache_seqlens[:first])
        call = None
        if first and not self._has_enough_rows(first):
            call = self._call(
                singles,
                None,
                most_queries=1,
                num_splits=self._num_splits(first),
                block_size=block_size,
            )
        chunks = None
        if batch.num_rows > first:
            chunks = self._call(
                _Rows(batch.block_table[first:], batch.cache_seqlens[first:]),
                batch.cu_seqlens_q[first:],
                most_queries=max(batch.query_lens[first:]),
                num_splits=1,
                block_size=block_size,
            )
        num_splits = choose_num_splits(
            first, self._heads.num_kv_heads, device=batch.block_table.device
        )
        own = _OwnCall(singles, num_splits, self._scratch)
        return Fa3StepAttention(own, call, chunks)

    def _has_enough_rows(self, num_rows: int) -> bool:
        """Whether our own kernel is the better one for decode rows."""
        items = num_rows * self._heads.num_kv_heads
        return self._heads.group <= _MOST_SMALL_GROUP or items >= _FEWEST_OWN_ITEMS

    def _num_splits(self, num_rows: int) -> int:
        """As many as fill the device when each row has one tile for each key head."""
        tiles = num_rows * self._heads.num_kv_heads
        return max(1, min(self._heads.num_multiprocessors // tiles, _MOST_SPLITS))

    def _call(
        self,
        rows: _Rows,
        cu_seqlens_q: torch.Tensor | None,
        *,
        most_queries: int,
        num_splits: int,
        block_size: int,
    ) -> _Call:
        heads = self._heads
        most_keys = rows.block_table.shape[1] * block_size
        metadata = _METADATA(
            rows.num_rows,
            most_queries,
            most_keys,
            heads.num_heads,
            heads.num_kv_heads,
            heads.head_dim,
            heads.head_dim,
            heads.dtype,
            rows.cache_seqlens,
            cu_seqlens_q=cu_seqlens_q,
            page_size=block_size,
            is_causal=True,
            num_splits=num_splits,
            pack_gqa=_packs_groups(cu_seqlens_q),
        )
        return _Call(
            rows=rows,
            cu_seqlens_q=cu_seqlens_q,
            most_queries=most_queries,
            most_keys=most_keys,
            num_splits=num_splits,
            metadata=metadata,
        )


class Fa3StepAttention:
    """One step: `StoredAttention`."""

    def __init__(self, own: _OwnCall, call: _Call | None, chunks: _Call | None) -> None:
        """`call` is for the single rows; None leaves them to our own kernel."""
        self._own = own
        self._call = call
        self._chunks = chunks

    def attend(self, q: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """[N, A, D] of q [N, A, D] over keys that are stored, this step's included.

        Tokens behind the last row's (padding) are left as they are in memory.
        """
        out = torch.empty_like(q)
        num_singles = self._own.rows.num_rows
        if self._call is not None:
            # [R, 1, A, D]; padding rows, without keys, get zeros
            self._call.run(q[:num_singles].unsqueeze(1), cache, out[:num_singles].unsqueeze(1))
        elif num_singles:
            self._own.run(q[:num_singles], cache, out[:num_singles])
        if self._chunks is not None:
            # last, for its tokens may lie where the decode rows' padding does
            self._chunks.run(q, cache, out)
        return out


def _packs_groups(cu_seqlens_q: torch.Tensor | None) -> bool | None:
    """Whether a key head's queries share a tile: always for single queries, else as it decides."""
    return True if cu_seqlens_q is None else None
