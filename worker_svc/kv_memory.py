"""How many KV blocks a CPU rank offers, and taking their memory. Knows no model and no slot."""

import torch

from worker_svc.config import InvalidConfig, WorkerConfig
from worker_svc.execution.kv_cache import KVCache, KVLayout
from worker_svc.host_memory import available_bytes

_DEFAULT_CACHE_BYTES = 1 << 30


def num_cpu_blocks(config: WorkerConfig, layout: KVLayout, *, max_model_len: int) -> int:
    """KV blocks of a CPU rank, the trash block included. Raises InvalidConfig if none fits."""
    if config.num_kv_blocks:
        return config.num_kv_blocks
    fitting = layout.num_blocks_within(config.kv_cache_bytes or _DEFAULT_CACHE_BYTES)
    if fitting < 2:
        raise InvalidConfig(
            f"--kv-cache-bytes {config.kv_cache_bytes} is too small: a block takes"
            f" {layout.bytes_per_block} bytes, and at least 2 are needed"
        )
    if config.kv_cache_bytes:
        return fitting
    usable = config.max_num_seqs * -(-max_model_len // config.block_size)
    return min(fitting, usable + 1)


def allocate_cache(layout: KVLayout) -> KVCache:
    """Takes the memory for exactly this layout. Raises InvalidConfig when it is not there."""
    wish = (
        f"the KV cache needs {layout.num_bytes:,} bytes for {layout.num_blocks} blocks;"
        " ask for less with --num-kv-blocks, --kv-cache-bytes or --max-num-seqs"
    )
    available = available_bytes()
    if available is not None and layout.num_bytes > available:
        raise InvalidConfig(f"{wish}: {available:,} bytes are free")
    try:
        return KVCache.allocate(layout, device=torch.device("cpu"))
    except (MemoryError, RuntimeError) as error:
        raise InvalidConfig(f"{wish}: {error}") from error
