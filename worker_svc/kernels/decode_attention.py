"""Attention of one query token a row over the paged cache: split-KV, grouped queries, one launch.

Legend: R rows, A query heads, K key heads, G = A / K, D head_dim, M blocks, B tokens in a block,
W blocks in a table's row.

Decoding reads every key and value once and computes little, so all is cut for reading. A program
takes one key head of one row, all its G queries at once (padded to 16, a tensor core's fewest
rows), so each key is read once; programs of a row's K heads are neighbours and read the same
lines of memory at the same time. Tiles of keys and values stream through shared memory, a few
tiles ahead (`num_stages`).

K * R programs fill a device from about 64 rows on. Below, a row's keys are cut into `num_splits`
equal parts of whole tiles. `num_splits` is fixed when a graph is captured, the lengths are read
from memory when it runs: a short row uses fewer splits, and the programs of the others end at
once, as do those of padding rows (length 0), which get zeros. The last split of a row to arrive
(counted in memory) combines them; a second launch for that would cost more than a microsecond a
layer where a step has little more.
"""

from dataclasses import dataclass
from typing import Self

import torch
import triton

from worker_svc.kernels.decode_programs import attend_split
from worker_svc.kernels.support import num_multiprocessors

_LOG2_E = 1.4426950408889634
_FEWEST_GROUP_ROWS = 16
_FEWEST_DIMS = 16
_MOST_SPLITS = 64
_COMBINED_VALUES_PER_WARP = 512  # three numbers for each in registers
_PROGRAMS_PER_MULTIPROCESSOR = 2


@dataclass(frozen=True, slots=True)
class DecodeTuning:
    """How a launch is cut; chosen by measuring."""

    tile: int = 64
    """Keys that a program reads at a time."""
    num_warps: int = 4
    num_stages: int = 4


@dataclass(frozen=True, slots=True, eq=False)
class DecodeScratch:
    """Memory between the splits of a row. Launches on one stream may share it."""

    sums: torch.Tensor  # float32 [rows * K * splits * G * D]
    peaks: torch.Tensor  # float32 [rows * K * splits * 2 * G]
    counters: torch.Tensor  # int32 [rows * K], zeros between launches

    @classmethod
    def allocate(
        cls, *, num_items: int, num_parts: int, group: int, head_dim: int, device: torch.device
    ) -> Self:
        """Memory for launches of up to `num_items` rows * K and `num_parts` rows * K * splits."""
        return cls(
            sums=torch.empty(num_parts * group * head_dim, dtype=torch.float32, device=device),
            peaks=torch.empty(num_parts * 2 * group, dtype=torch.float32, device=device),
            counters=torch.zeros(num_items, dtype=torch.int32, device=device),
        )

    @classmethod
    def for_rows(
        cls, most_rows: int, *, num_kv_heads: int, group: int, head_dim: int, device: torch.device
    ) -> Self:
        """Memory for up to `most_rows` rows, cut as `choose_num_splits` says."""
        parts = [0]
        for num_rows in range(1, most_rows + 1):
            num_splits = choose_num_splits(num_rows, num_kv_heads, device=device)
            if num_splits > 1:
                parts.append(num_rows * num_kv_heads * num_splits)
        return cls.allocate(
            num_items=most_rows * num_kv_heads,
            num_parts=max(parts),
            group=group,
            head_dim=head_dim,
            device=device,
        )


def choose_num_splits(num_rows: int, num_kv_heads: int, *, device: torch.device) -> int:
    """Splits that fill the device with a bucket's rows, whatever their lengths."""
    programs = max(1, num_rows * num_kv_heads)
    wanted = _PROGRAMS_PER_MULTIPROCESSOR * num_multiprocessors(device)
    return max(1, min(round(wanted / programs), _MOST_SPLITS))


def decode_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    block_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    scratch: DecodeScratch,
    num_splits: int,
    out: torch.Tensor | None = None,
    tuning: DecodeTuning | None = None,
) -> torch.Tensor:
    """[R, A, D] of queries q [R, A, D] over the first `cache_seqlens` [R] keys of each row.

    `block_table` [R, W] may be wider than needed; entries beyond a row's keys are not read.
    """
    tuning = tuning or DecodeTuning()
    num_rows, num_heads, head_dim = q.shape
    _, block_size, num_kv_heads, _ = keys.shape
    group = num_heads // num_kv_heads
    if out is None:
        out = q.new_empty(q.shape)
    if num_rows == 0:
        return out
    assert q.stride()[1:] == (head_dim, 1)
    assert out.is_contiguous()
    assert block_table.stride(1) == 1
    num_items = num_rows * num_kv_heads
    assert scratch.counters.numel() >= num_items
    assert num_splits == 1 or scratch.peaks.numel() >= num_items * num_splits * 2 * group
    padded_width = triton.next_power_of_2(group * head_dim)
    attend_split[(num_kv_heads, num_splits, num_rows)](
        q,
        keys,
        values,
        out,
        block_table,
        cache_seqlens,
        scratch.sums,
        scratch.peaks,
        scratch.counters,
        q.stride(0),
        block_table.stride(0),
        num_splits,
        scale=_LOG2_E / head_dim**0.5,
        num_kv_heads=num_kv_heads,
        group=group,
        padded_group=max(triton.next_power_of_2(group), _FEWEST_GROUP_ROWS),
        head_dim=head_dim,
        padded_dim=max(triton.next_power_of_2(head_dim), _FEWEST_DIMS),
        block_size=block_size,
        tile=tuning.tile,
        padded_width=padded_width,
        # not fewer where there are fewer splits: one variant serves every bucket
        splits_at_once=max(1, _COMBINED_VALUES_PER_WARP * tuning.num_warps // padded_width),
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
    )
    return out
