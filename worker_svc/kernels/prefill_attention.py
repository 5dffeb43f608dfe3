"""Causal attention of rows with several query tokens over the paged cache, in one launch.

Legend: N tokens, R rows, A query heads, K key heads, G = A / K, D head_dim, M blocks, B tokens in
a block, W blocks in a table's row.

The new tokens' keys lie in the cache already, so a first chunk, a later chunk and a prompt behind a
cached prefix are the same: a row's queries are its last keys. A program takes one key head and a
tile of one row's tokens with all G queries of each token, so that a key serves the whole group
from shared memory; short chunks fill the tensor cores' rows that way too. Keys before the tile's
first token are seen by all of its queries and go through a loop without masks.

Which tile a program has follows from `cu_seqlens_q` on the device: the number of programs depends
on N and R alone, as a graph needs; there are at most R tiles too many, which end at once, as do
those of padding rows (no queries).
"""

from dataclasses import dataclass

import torch
import triton

from worker_svc.kernels.prefill_programs import attend_tile

_LOG2_E = 1.4426950408889634
_FEWEST_LINES = 16
_FEWEST_DIMS = 16
_ROWS_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class PrefillTuning:
    """How a launch is cut; chosen by measuring."""

    query_tile: int = 128
    """Queries of a program: tokens times G. Batches with fewer take a smaller tile."""
    tile: int = 64
    """Keys that a program reads at a time."""
    num_warps: int = 8
    num_stages: int = 3


def prefill_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    block_table: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cache_seqlens: torch.Tensor,
    num_tokens: int,
    out: torch.Tensor,
    tuning: PrefillTuning | None = None,
) -> None:
    """Write the rows' tokens of `out` [N, A, D] from those of q [N, A, D]; leave the others.

    Row r has the tokens `cu_seqlens_q` [r]..[r + 1] (int32 [R + 1]); they are the last of its
    `cache_seqlens` [r] keys. `num_tokens` is at least their sum.
    """
    tuning = tuning or PrefillTuning()
    num_rows = cache_seqlens.shape[0]
    if num_rows == 0 or num_tokens == 0:
        return
    num_heads, head_dim = q.shape[1:]
    _, block_size, num_kv_heads, _ = keys.shape
    group = num_heads // num_kv_heads
    query_tile = _query_tile(num_tokens * group, group, tuning)
    assert q.stride()[1:] == (head_dim, 1)
    assert out.is_contiguous()
    assert block_table.stride(1) == 1
    attend_tile[(num_tokens // (query_tile // group) + num_rows, num_kv_heads)](
        q,
        keys,
        values,
        out,
        block_table,
        cu_seqlens_q,
        cache_seqlens,
        q.stride(0),
        block_table.stride(0),
        num_rows,
        scale=_LOG2_E / head_dim**0.5,
        num_kv_heads=num_kv_heads,
        group=group,
        head_dim=head_dim,
        padded_dim=max(triton.next_power_of_2(head_dim), _FEWEST_DIMS),
        block_size=block_size,
        query_tile=query_tile,
        tile=tuning.tile,
        rows_at_once=_ROWS_AT_ONCE,
        num_warps=tuning.num_warps if query_tile >= 128 else 4,
        num_stages=tuning.num_stages,
    )


def _query_tile(num_queries: int, group: int, tuning: PrefillTuning) -> int:
    """A power of 2 that holds at least a token's queries and not many more than there are."""
    fewest = max(_FEWEST_LINES, triton.next_power_of_2(group))
    tile: int = max(fewest, min(triton.next_power_of_2(num_queries), tuning.query_tile))
    return tile
