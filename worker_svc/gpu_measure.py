"""What a GPU runner needs of memory, measured by running its largest steps. Knows no budget."""

import gc
from collections.abc import Callable

import torch

from worker_svc.config import WorkerConfig
from worker_svc.execution.gpu_assembly import GpuAssembly, RunnerLimits, assemble
from worker_svc.execution.graph_device import CudaDevice
from worker_svc.execution.kv_cache import KVCache, KVLayout
from worker_svc.gpu_memory import MemoryUse
from worker_svc.models.decoder import Decoder
from worker_svc.parallel.group import ParallelGroup


def assemble_on(
    device: CudaDevice,
    config: WorkerConfig,
    *,
    decoder: Decoder,
    group: ParallelGroup,
    cache: KVCache,
    num_tokenizer_ids: int,
) -> GpuAssembly:
    """The runner of these settings."""
    return assemble(
        model=decoder,
        cache=cache,
        group=group,
        device=device,
        limits=RunnerLimits(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            num_tokenizer_ids=num_tokenizer_ids,
        ),
        uses_graphs=not config.enforce_eager,
    )


def measure(
    device: CudaDevice,
    config: WorkerConfig,
    *,
    decoder: Decoder,
    group: ParallelGroup,
    layout: KVLayout,
) -> MemoryUse:
    """What this process needs beside a KV cache: runs the largest steps on padding.

    `layout` has a few blocks, which no step touches.
    """
    cache = KVCache.allocate(layout, device=device.device)
    assembly = assemble_on(
        device,
        config,
        decoder=decoder,
        group=group,
        cache=cache,
        num_tokenizer_ids=decoder.spec.vocab_size,
    )
    device.finish()
    resident = torch.cuda.memory_allocated(device.device) - layout.num_bytes
    largest_step = _peak(device, assembly.programs.run_largest)
    largest_recorded = _peak(device, assembly.programs.run_largest_recorded)
    del assembly, cache
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device.device)
    return MemoryUse(
        total=total,
        # step memory was given back, and will be taken again
        free=free - (resident - torch.cuda.memory_allocated(device.device)),
        resident=resident,
        largest_step=largest_step,
        graphs=0 if config.enforce_eager else largest_recorded,
    )


def _peak(device: CudaDevice, run: Callable[[], None]) -> int:
    """Bytes that running takes at most, beside what is there before."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device.device)
    before = torch.cuda.memory_reserved(device.device)
    run()
    device.finish()
    return max(0, torch.cuda.max_memory_reserved(device.device) - before)
