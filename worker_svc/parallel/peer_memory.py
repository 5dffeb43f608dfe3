"""Memory that all ranks of one machine map, for small sums over ranks. Knows no kernel's inside.

Through torch's symmetric memory, without NVLink multicast. Where it cannot be had, NCCL does all.
"""

import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist

from worker_svc.kernels.rank_sum import MOST_BLOCKS, RankBuffers, sum_add_rms_norm
from worker_svc.kernels.support import num_multiprocessors
from worker_svc.parallel.group import ParallelGroup

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ALIGNMENT = 16


class PeerMemoryUnavailableError(Exception):
    """The ranks cannot map each other's memory; the message says why. The same on every rank."""


@dataclass(frozen=True, slots=True)
class SwitchOver:
    """Up to which size of a message, in bytes, which way is the fastest; above them NCCL's."""

    one_shot: int
    two_shot: int

    def __str__(self) -> str:
        return (
            f"up to {self.two_shot >> 10} KiB, in one shot up to {self.one_shot >> 10} KiB;"
            " larger ones through NCCL"
        )


KIB, MIB = 1 << 10, 1 << 20
SWITCH_OVERS = {
    2: SwitchOver(one_shot=256 * KIB, two_shot=16 * MIB),
    4: SwitchOver(one_shot=256 * KIB, two_shot=8 * MIB),
    8: SwitchOver(one_shot=128 * KIB, two_shot=4 * MIB),
}
"""By the number of ranks. `python -m bench.all_reduce` measures what these should be."""


class PeerMemory:
    """One buffer a rank, mapped by all. `connect` makes it; it lasts as long as the process."""

    def __init__(self, buffers: RankBuffers, switch_over: SwitchOver, *, owner: object) -> None:
        """`owner` keeps the mappings alive."""
        self.buffers = buffers
        self.switch_over = switch_over
        self._owner = owner

    @classmethod
    def connect(
        cls,
        group: ParallelGroup,
        *,
        device: torch.device,
        switch_over: SwitchOver | None = None,
    ) -> Self:
        """Map the buffers of all ranks of the process group; every rank calls it.

        `switch_over` replaces what the table says. Raises `PeerMemoryUnavailableError` on all
        ranks or on none.
        """
        # a program that uses multicast and dies can leave the host's GPUs unusable
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
        switch_over = switch_over or SWITCH_OVERS.get(group.size)
        if switch_over is None:
            sizes = ", ".join(map(str, SWITCH_OVERS))
            raise PeerMemoryUnavailableError(f"{group.size} ranks; it is for {sizes}")
        _agree(group, _obstacle(group, device), device)
        num_blocks = min(MOST_BLOCKS, num_multiprocessors(device))
        bytes_per_region = -(-switch_over.two_shot // num_blocks // _ALIGNMENT) * _ALIGNMENT
        shape = RankBuffers(
            addresses=torch.zeros(group.size, dtype=torch.int64, device=device),
            rank=group.rank,
            num_ranks=group.size,
            num_blocks=num_blocks,
            bytes_per_region=bytes_per_region,
        )
        obstacle, owner = "", None
        try:
            owner = _map(shape, device)
        # it is no public module: its names may change
        except (RuntimeError, ImportError, AttributeError, ValueError) as error:
            obstacle = str(error).partition("\n")[0]
        _agree(group, obstacle, device)
        return cls(shape, switch_over, owner=owner)

    def takes(self, part: torch.Tensor) -> bool:
        """Whether a message [N, H] is better summed here than by NCCL."""
        num_bytes = part.numel() * part.element_size()
        return 0 < num_bytes <= self.switch_over.two_shot and self.buffers.holds(part)

    def sum_add_rms_norm(
        self, part: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of (sum over ranks of `part`) + `residual`, and that sum: [N, H] each."""
        num_bytes = part.numel() * part.element_size()
        return sum_add_rms_norm(
            part,
            residual,
            weight,
            epsilon=epsilon,
            buffers=self.buffers,
            is_two_shot=num_bytes > self.switch_over.one_shot,
        )


def _obstacle(group: ParallelGroup, device: torch.device) -> str:
    """Why this rank cannot reach the others' memory; empty when it can."""
    machines = set(_gathered(group, zlib.crc32(_BOOT_ID.read_bytes()), device))
    if len(machines) > 1:
        return "the ranks are on several machines"
    if len(set(_gathered(group, num_multiprocessors(device), device))) > 1:
        return "the GPUs differ"
    for other in _gathered(group, device.index, device):
        if other != device.index and not torch.cuda.can_device_access_peer(device.index, other):
            return f"GPU {device.index} has no access to the memory of GPU {other}"
    return ""


def _map(shape: RankBuffers, device: torch.device) -> tuple[Any, ...]:
    """Fill in the addresses; the result keeps the memory mapped."""
    # not in every build of torch
    import torch.distributed._symmetric_memory as symmetric  # noqa: PLC0415

    if symmetric.get_backend(device) != "CUDA":
        symmetric.set_backend("CUDA")
    buffer = symmetric.empty(shape.num_bytes, dtype=torch.uint8, device=device)
    buffer.zero_()
    world = dist.group.WORLD
    assert world is not None
    handle = symmetric.rendezvous(buffer, world)
    # a buffer may lie anywhere in what is mapped, at the same place on all ranks
    offset = buffer.data_ptr() - handle.buffer_ptrs[shape.rank]
    shape.addresses.copy_(torch.tensor([start + offset for start in handle.buffer_ptrs]))
    torch.cuda.synchronize(device)
    return buffer, handle


def _agree(group: ParallelGroup, obstacle: str, device: torch.device) -> None:
    """Wait for all ranks; raise on all of them if one has an obstacle."""
    blocked = [
        rank for rank, is_bad in enumerate(_gathered(group, bool(obstacle), device)) if is_bad
    ]
    if blocked:
        raise PeerMemoryUnavailableError(obstacle or f"rank {blocked[0]} says why")


def _gathered(group: ParallelGroup, value: int, device: torch.device) -> list[int]:
    """A number of every rank; waits for all."""
    ours = torch.tensor([int(value)], dtype=torch.int64, device=device)
    numbers: list[int] = group.all_gather(ours).flatten().tolist()
    return numbers
