"""One model on this GPU, driven step by step as a rank drives it, and timed."""

import gc
import itertools
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bench.gpu_batches import NUM_TOKENIZER_IDS, decode_step, mixed_step
from bench.roofline import MODELS, Roofline
from worker_svc.batch_step import BatchStep
from worker_svc.execution.gpu_assembly import GpuAssembly, RunnerLimits, assemble
from worker_svc.execution.graph_device import CudaDevice
from worker_svc.execution.kv_cache import KVCache, KVLayout
from worker_svc.gpu_backend import backend_named
from worker_svc.gpu_model import random_decoder
from worker_svc.parallel.group import SingleRank

MOST_ROWS = 256
MOST_TOKENS = 2048
BLOCK_SIZE = 16
DTYPE = torch.bfloat16


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """One line of the decode table; times in microseconds."""

    model: str
    backend: str
    rows: int
    context: int
    has_filters: bool
    floor: float
    replay: float
    """The recorded program alone, back to back."""
    step: float
    """A step as served: from one result to the next."""
    launch: float
    """The host's time in `launch`."""
    gap_p50: float
    """From the end of one step's result copy to the beginning of the next step's input copy."""
    gap_p99: float

    def __str__(self) -> str:
        return (
            f"{self.model:5} {self.backend:6} {self.rows:4} x {self.context:6}"
            f" floor {self.floor:8.1f} replay {self.replay:8.1f} step {self.step:8.1f}"
            f" ({100 * self.floor / self.step:3.0f}%) launch {self.launch:6.1f}"
            f" gap p50 {self.gap_p50:4.0f} p99 {self.gap_p99:4.0f}"
            f"{' top-k 20, top-p 0.95' if self.has_filters else ''}"
        )


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """One line of the prefill table; times in microseconds."""

    model: str
    backend: str
    tokens: int
    decode_rows: int
    floor: float
    step: float
    launch: float

    def __str__(self) -> str:
        return (
            f"{self.model:5} {self.backend:6} prefill {self.tokens:5} + {self.decode_rows:3} rows"
            f" floor {self.floor:8.1f} step {self.step:8.1f} launch {self.launch:7.1f}"
        )


@dataclass(frozen=True, slots=True)
class GapResult:
    """The device's idle time between steps over a long run, in microseconds."""

    model: str
    backend: str
    rows: int
    context: int
    steps: int
    p50: float
    p99: float
    longest: float

    def __str__(self) -> str:
        return (
            f"{self.model:5} {self.backend:6} {self.rows:4} x {self.context:6} idle between"
            f" {self.steps} steps p50 {self.p50:4.0f} p99 {self.p99:4.0f}"
            f" longest {self.longest:6.0f}"
        )


class Bench:
    """One model with one attention backend."""

    def __init__(self, model: str, backend: str, *, num_keys: int, num_positions: int) -> None:
        spec = MODELS[model]
        self.model, self.backend = model, backend
        self.roofline = Roofline(spec)
        self.device = CudaDevice(0)
        self.device.take_over()
        self.num_positions = num_positions
        fused = backend_named(
            backend,
            spec,
            most_rows=MOST_ROWS,
            device=self.device.device,
            dtype=DTYPE,
        )
        decoder = random_decoder(
            spec,
            group=SingleRank(),
            backend=fused,
            dtype=DTYPE,
            device=self.device.device,
            num_positions=num_positions,
        )
        layout = KVLayout.of_model(
            spec,
            num_blocks=num_keys // BLOCK_SIZE + 1,
            block_size=BLOCK_SIZE,
            num_ranks=1,
            dtype=DTYPE,
        )
        cache = KVCache.allocate(layout, device=self.device.device)
        for layer in cache.layers:
            layer.keys.normal_()
            layer.values.normal_()
        self.num_blocks = layout.num_blocks
        self.assembly: GpuAssembly = assemble(
            model=decoder,
            cache=cache,
            group=SingleRank(),
            device=self.device,
            limits=RunnerLimits(MOST_ROWS, MOST_TOKENS, NUM_TOKENIZER_IDS),
            uses_graphs=True,
        )
        began = time.monotonic()
        self.assembly.programs.get_ready()
        self.device.finish()
        reserved = torch.cuda.memory_reserved() / 2**30
        print(f"{model} {backend}: ready in {time.monotonic() - began:.1f} s, {reserved:.1f} GiB")

    def fill_tables(self, num_rows: int, context: int) -> None:
        """Blocks in no order, none shared."""
        per_row = -(-context // BLOCK_SIZE)
        blocks = np.random.default_rng(0).permutation(self.num_blocks - 1)[: num_rows * per_row] + 1
        tables = self.assembly.programs.memory.tables
        tables[:num_rows, :per_row] = torch.from_numpy(
            blocks.reshape(num_rows, per_row).astype(np.int32)
        ).to(tables.device)

    def decode(self, num_rows: int, context: int, *, has_filters: bool = False) -> DecodeResult:
        """Times one size. With filters a step is two programs, and only the step is timed."""
        self.fill_tables(num_rows, context)
        step = decode_step(num_rows, context - 1, has_filters=has_filters)
        self._run([step] * 3)
        replay_us = 0.0 if has_filters else self._replay_us(num_rows)
        step_us, launch_us, gaps = self._run([step] * 60)
        return DecodeResult(
            model=self.model,
            backend=self.backend,
            rows=num_rows,
            context=context,
            has_filters=has_filters,
            floor=1e6 * self.roofline.decode_s(num_rows, num_rows * context),
            replay=replay_us,
            step=step_us,
            launch=launch_us,
            gap_p50=statistics.median(gaps),
            gap_p99=_p99(gaps),
        )

    def gaps(self, num_rows: int, context: int, num_steps: int) -> GapResult:
        """Decode steps as served, long enough that a 99th percentile means something."""
        self.fill_tables(num_rows, context)
        step = decode_step(num_rows, context - 1)
        self._run([step] * 3)
        # as a rank does before it serves
        gc.collect()
        gc.freeze()
        _, _, gaps = self._run([step] * num_steps)
        gc.unfreeze()
        return GapResult(
            model=self.model,
            backend=self.backend,
            rows=num_rows,
            context=context,
            steps=num_steps,
            p50=statistics.median(gaps),
            p99=_p99(gaps),
            longest=max(gaps),
        )

    def prefill(self, num_tokens: int, num_decode_rows: int) -> PrefillResult:
        """Times one size: a prompt, beside decode rows of 1,024 keys."""
        self.fill_tables(num_decode_rows + 1, max(num_tokens, 1024))
        step = mixed_step(num_tokens, num_decode_rows, 1023)
        self._run([step] * 3)
        step_us, launch_us, _ = self._run([step] * 20)
        return PrefillResult(
            model=self.model,
            backend=self.backend,
            tokens=num_tokens,
            decode_rows=num_decode_rows,
            floor=1e6 * self.roofline.prefill_s(num_tokens),
            step=step_us,
            launch=launch_us,
        )

    def _replay_us(self, num_rows: int) -> float:
        """Median of a replay; inputs are those of the step before."""
        programs = self.assembly.programs
        size = programs.decode_size(num_rows)
        events = [self.device.event() for _ in range(31)]
        for event in events:
            event.record()
            programs.decode(size)
        self.device.finish()
        pairs = itertools.pairwise(events)
        return statistics.median(later.us_since(earlier) for earlier, later in pairs)

    def _run(self, steps: list[BatchStep]) -> tuple[float, float, list[int]]:
        """Median time of a step, of its launch, and the gaps before steps."""
        runner = self.assembly.runner
        launch_ns, gaps, ends_ns = [], [], []
        in_flight = 0
        for step in steps:
            if in_flight == 2:
                gaps.append(self._collect())
                ends_ns.append(time.monotonic_ns())
                in_flight -= 1
            began = time.monotonic_ns()
            runner.launch(step, received_ns=began)
            launch_ns.append(time.monotonic_ns() - began)
            in_flight += 1
        for _ in range(in_flight):
            gaps.append(self._collect())
            ends_ns.append(time.monotonic_ns())
        spans = [later - earlier for earlier, later in itertools.pairwise(ends_ns)]
        return statistics.median(spans) / 1e3, statistics.median(launch_ns) / 1e3, gaps[2:] or gaps

    def _collect(self) -> int:
        runner = self.assembly.runner
        while not runner.is_done():
            pass
        return runner.collect().timing.stall_us

    def profile(self, path: Path, num_rows: int, context: int) -> None:
        """Writes a trace of a few steps and prints where the device's time goes."""
        self.fill_tables(num_rows, context)
        step = decode_step(num_rows, context - 1)
        self._run([step] * 3)
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profiler:
            self._run([step] * 6)
            self.device.finish()
        profiler.export_chrome_trace(str(path))
        averages = profiler.key_averages()
        kernels = [a for a in averages if a.device_time_total > 0 and a.cpu_time_total == 0]
        print(f"{self.model} {self.backend} {num_rows} rows of {context}: kernels of 6 steps")
        for kernel in sorted(kernels, key=lambda a: -a.device_time_total)[:18]:
            mean = kernel.device_time_total / kernel.count
            print(
                f"  {kernel.device_time_total:9.0f} us {kernel.count:5} x {mean:8.2f}"
                f"  {kernel.key[:90]}"
            )


def _p99(values: list[int]) -> int:
    return sorted(values)[int(0.99 * (len(values) - 1))]
