"""How many KV blocks a GPU rank offers, out of this process's own use of memory. Knows no device.

The budget is a share of the whole GPU, and what counts against it is what this process takes: two
instances side by side never measure each other. What others have taken shows only in what is free
now; a cache that does not fit there is refused with the whole account.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from worker_svc.config import InvalidConfig, WorkerConfig
from worker_svc.execution.kv_cache import KVLayout

OVERHEAD_BYTES = 1 << 30
"""What torch does not count: the CUDA context, loaded kernels, the graphs themselves."""


class NoRoomError(InvalidConfig):
    """What the settings ask for does not fit into the GPU's memory."""


class MemoryTakenError(Exception):
    """What once fitted does not now: others have taken the GPU's memory, and may give it back."""


@contextmanager
def room_for(wish: str, *, is_restart: bool) -> Iterator[None]:
    """What the GPU has no memory for is one clear error, `NoRoomError`.

    At a restart it is `MemoryTakenError`: an earlier start found some.
    """
    try:
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise NoRoomError(f"the GPU has no room for {wish}: {error}") from error
    except NoRoomError as error:
        if not is_restart:
            raise
        raise MemoryTakenError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes on one GPU, measured by this process."""

    total: int
    """Of the GPU."""
    free: int
    """On the GPU now, weights and step memory taken."""
    resident: int
    """Weights and the fixed memory of steps."""
    largest_step: int
    """What the largest step takes beside them, sampling included."""
    graphs: int
    """What recorded graphs will take beside all this."""

    @property
    def needed(self) -> int:
        """All but the KV cache."""
        return self.resident + self.largest_step + self.graphs + OVERHEAD_BYTES


def num_gpu_blocks(
    config: WorkerConfig, layout: KVLayout, use: MemoryUse, *, max_model_len: int
) -> int:
    """KV blocks of a GPU rank, the trash block included; raises NoRoomError when they cannot fit.

    `--num-kv-blocks` and `--kv-cache-bytes` are taken exactly.
    """
    if config.num_kv_blocks:
        num_blocks = config.num_kv_blocks
    elif config.kv_cache_bytes:
        num_blocks = layout.num_blocks_within(config.kv_cache_bytes)
    else:
        budget = int(config.gpu_memory_utilization * use.total) - use.needed
        blocks_of_a_sequence = -(-max_model_len // config.block_size)
        usable = config.max_num_seqs * blocks_of_a_sequence + 1
        num_blocks = min(layout.num_blocks_within(budget), usable)
    if num_blocks < 2:
        raise NoRoomError(f"no room for a KV cache of two blocks: {account(config, layout, use)}")
    left = use.free - use.largest_step - use.graphs
    if num_blocks * layout.bytes_per_block > left:
        raise NoRoomError(
            f"a KV cache of {num_blocks} blocks does not fit: {account(config, layout, use)}"
        )
    return num_blocks


def account(config: WorkerConfig, layout: KVLayout, use: MemoryUse) -> str:
    """Where the GPU's memory goes, in one line."""
    share = config.gpu_memory_utilization
    parts = (
        f"the GPU has {_gib(use.total)}",
        f"--gpu-memory-utilization {share:g} allows {_gib(share * use.total)}",
        f"weights and step memory {_gib(use.resident)}",
        f"the largest step {_gib(use.largest_step)}",
        f"graphs {_gib(use.graphs)}",
        f"CUDA itself about {_gib(OVERHEAD_BYTES)}",
        f"a KV block {layout.bytes_per_block:,} bytes",
        f"free on the GPU now {_gib(use.free)}",
    )
    hint = (
        "try a higher --gpu-memory-utilization, or a smaller --max-num-batched-tokens,"
        " --max-num-seqs or --num-kv-blocks"
    )
    return f"{', '.join(parts)}; {hint}"


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
