"""Sum over ranks, residual add and RMS norm in one launch, through memory that all ranks map.

Knows addresses, no transport: who maps the memory is `worker_svc.parallel.peer_memory`'s business.

Legend: N tokens, H features, W ranks.

Each block of a launch works with the blocks of the same number on the other ranks, and with nobody
else. It copies its rows into its region of its own rank's buffer, meets the others, and reads:
- one shot: every rank reads its rows from all ranks and sums them; best while latency counts.
- two shots: every rank sums its share of the rows, meets the others again, and reads the sums of
  the other shares; moves 2 (W - 1) / W of the message instead of W - 1.
Sums are in float32 in the order of ranks and are rounded once, so all ranks have the same bits, and
both ways give the same ones.

Meeting: a block adds to a counter in every rank's buffer (release) and waits until all ranks have
added to its own (acquire). Counters only grow, so recorded launches can be replayed. They also say
which of a region's two halves is in turn: a rank that has met the others in one launch knows that
they have left the launch before, and so may overwrite that one's half in the next.

A rank that died never comes to a meeting: the others spin on the device for ever. Nothing here
ends that. The core sees no result by the step deadline and has the whole group killed, spinning
kernels with it, and started again (scheduler_svc/engine, GroupKeeper.kill).
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from worker_svc.kernels.jit import kernel
from worker_svc.kernels.norm import warps_for

MOST_BLOCKS = 128
"""Blocks that wait must all be running: no more than a GPU has multiprocessors."""


@dataclass(frozen=True, slots=True, eq=False)
class RankBuffers:
    """One buffer of each rank, as this rank sees them; zeros before the first launch."""

    addresses: torch.Tensor  # int64 [W], on the device
    rank: int
    num_ranks: int
    num_blocks: int
    """Blocks of the largest launch, the same on all ranks."""
    bytes_per_region: int
    """What one block can hold of a message, a multiple of 16."""

    @property
    def num_bytes(self) -> int:
        """Size of each buffer: counters, then two regions for each block."""
        return self.num_blocks * (4 * self.num_ranks + 2 * self.bytes_per_region)

    def holds(self, part: torch.Tensor) -> bool:
        """Whether a message [N, H] fits."""
        rows_per_region = self.bytes_per_region // (part.shape[1] * part.element_size())
        return part.shape[0] <= self.num_blocks * rows_per_region


def sum_add_rms_norm(
    part: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    *,
    epsilon: float,
    buffers: RankBuffers,
    is_two_shot: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of (sum over ranks of `part`) + `residual`, and that sum: [N, H] each.

    All ranks launch the same in the same order, N > 0 and equal; `buffers.holds(part)`.
    """
    assert part.is_contiguous()
    assert residual.is_contiguous()
    assert buffers.holds(part)
    num_tokens, num_features = part.shape
    padded = triton.next_power_of_2(num_features)
    out, total = torch.empty_like(part), torch.empty_like(residual)
    _sum_add_norm[(min(num_tokens, buffers.num_blocks),)](
        part,
        residual,
        weight,
        out,
        total,
        buffers.addresses,
        num_tokens,
        epsilon=epsilon,
        rank=buffers.rank,
        num_ranks=buffers.num_ranks,
        first_region=4 * buffers.num_ranks * buffers.num_blocks,
        rows_per_region=buffers.bytes_per_region // (num_features * part.element_size()),
        is_two_shot=is_two_shot,
        num_features=num_features,
        padded_features=padded,
        num_warps=warps_for(padded),
    )
    return out, total


@kernel(varying=("num_tokens",))
def _sum_add_norm(
    part_ptr: tl.tensor,
    residual_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    total_ptr: tl.tensor,
    buffers_ptr: tl.tensor,
    num_tokens: tl.tensor,
    epsilon: tl.constexpr,
    rank: tl.constexpr,
    num_ranks: tl.constexpr,
    first_region: tl.constexpr,
    rows_per_region: tl.constexpr,
    is_two_shot: tl.constexpr,
    num_features: tl.constexpr,
    padded_features: tl.constexpr,
) -> None:
    block, num_blocks = tl.program_id(0), tl.num_programs(0)
    feature = tl.arange(0, padded_features)
    is_feature = feature < num_features
    num_rows = (num_tokens - block + num_blocks - 1) // num_blocks
    counters = tl.load(buffers_ptr + rank).to(tl.pointer_type(tl.int32)) + block * num_ranks
    # a launch adds 2 to each counter, in one meeting or two
    count = tl.load(counters + rank, volatile=True)
    half = (2 * block + ((count >> 1) & 1)) * rows_per_region * num_features

    own = _region(buffers_ptr, rank, part_ptr, first_region) + half
    for row in range(num_rows):
        offsets = (block + row * num_blocks).to(tl.int64) * num_features + feature
        x = tl.load(part_ptr + offsets, mask=is_feature)
        tl.store(own + row * num_features + feature, x, mask=is_feature)
    if is_two_shot:
        _meet(buffers_ptr, counters, block, count + 1, 1, rank, num_ranks)
        for row in range(rank, num_rows, num_ranks):
            at = half + row * num_features + feature
            x = _sum(buffers_ptr, part_ptr, at, is_feature, first_region, num_ranks)
            tl.store(own + row * num_features + feature, x, mask=is_feature)
        _meet(buffers_ptr, counters, block, count + 2, 1, rank, num_ranks)
    else:
        _meet(buffers_ptr, counters, block, count + 2, 2, rank, num_ranks)

    weight = tl.load(weight_ptr + feature, mask=is_feature, other=0.0).to(tl.float32)
    for row in range(num_rows):
        at = half + row * num_features + feature
        if is_two_shot:
            summed = _region(buffers_ptr, row % num_ranks, part_ptr, first_region) + at
            x = tl.load(summed, mask=is_feature, other=0.0, cache_modifier=".cg")
        else:
            x = _sum(buffers_ptr, part_ptr, at, is_feature, first_region, num_ranks)
        offsets = (block + row * num_blocks).to(tl.int64) * num_features + feature
        y = x.to(tl.float32)
        y += tl.load(residual_ptr + offsets, mask=is_feature, other=0.0).to(tl.float32)
        rounded = y.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + offsets, rounded, mask=is_feature)
        y = rounded.to(tl.float32)
        scale = tl.rsqrt(tl.sum(y * y, axis=0) / num_features + epsilon)
        tl.store(out_ptr + offsets, y * scale * weight, mask=is_feature)


@kernel()
def _region(
    buffers_ptr: tl.tensor, rank: tl.tensor, like_ptr: tl.tensor, first_region: tl.constexpr
) -> tl.tensor:
    """Where a rank's first region begins; told to be aligned, for accesses of 16 bytes."""
    address = tl.load(buffers_ptr + rank) + first_region
    return tl.multiple_of(address.to(like_ptr.dtype), 16)


@kernel()
def _sum(
    buffers_ptr: tl.tensor,
    like_ptr: tl.tensor,
    at: tl.tensor,
    is_feature: tl.tensor,
    first_region: tl.constexpr,
    num_ranks: tl.constexpr,
) -> tl.tensor:
    """One row summed over ranks, rounded to the type of the message."""
    first = _region(buffers_ptr, 0, like_ptr, first_region) + at
    # .cg: another rank wrote it, this multiprocessor's own cache may hold what was there before
    x = tl.load(first, mask=is_feature, other=0.0, cache_modifier=".cg").to(tl.float32)
    for other in tl.static_range(1, num_ranks):
        theirs = _region(buffers_ptr, other, like_ptr, first_region) + at
        x += tl.load(theirs, mask=is_feature, other=0.0, cache_modifier=".cg").to(tl.float32)
    return x.to(like_ptr.dtype.element_ty)


@kernel()
def _meet(
    buffers_ptr: tl.tensor,
    counters: tl.tensor,
    block: tl.tensor,
    goal: tl.tensor,
    step: tl.constexpr,
    rank: tl.constexpr,
    num_ranks: tl.constexpr,
) -> None:
    """Return once the block of every rank has come here; what they wrote before can be read."""
    ranks = tl.arange(0, num_ranks)
    theirs = tl.load(buffers_ptr + ranks).to(tl.pointer_type(tl.int32)) + block * num_ranks + rank
    tl.debug_barrier()  # the release below speaks for all threads of the block
    tl.atomic_add(theirs, step, sem="release", scope="sys")
    num_missing = num_ranks
    while num_missing > 0:
        # one thread asks for each rank and all threads get its answer: they leave together
        arrived = tl.atomic_add(counters + ranks, 0, sem="acquire", scope="sys")
        num_missing = tl.sum((arrived - goal < 0).to(tl.int32), axis=0)
    tl.debug_barrier()
