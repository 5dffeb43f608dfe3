"""Two runners of one model side by side: the CPU's, and the one for GPUs on a fake device."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from tests.fakes.immediate_device import ImmediateDevice
from tests.model.rigs import BLOCK_SIZE, CPU, NUM_BLOCKS, Row, load, no_progress, step_of
from worker_svc.attention.triton_backend import TritonBackend
from worker_svc.batch_step import BatchStep, NewBlocks, SampledRows, SamplingColumns
from worker_svc.execution.gpu_assembly import RunnerLimits, assemble
from worker_svc.execution.kv_cache import KVCache, KVLayout
from worker_svc.execution.runner import ModelRunner
from worker_svc.execution.sampler import Sampler
from worker_svc.execution.sampling_plan import VocabularyPart
from worker_svc.execution.triton_layers import TritonLayers
from worker_svc.layers.fused import FusedBackend
from worker_svc.models.decoder import Decoder
from worker_svc.models.spec import ModelSpec, parse_model_spec
from worker_svc.parallel.group import SingleRank
from worker_svc.weights.loader import load_model

NUM_SLOTS = 6
MAX_TOKENS = 80
NUM_POSITIONS = 128
BLOCKS_PER_SLOT = NUM_POSITIONS // BLOCK_SIZE


def fused_backend(spec: ModelSpec) -> FusedBackend:
    """Triton all the way."""
    attention = TritonBackend.create(
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        most_rows=NUM_SLOTS,
        device=CPU,
    )
    return FusedBackend(TritonLayers(), attention)


def load_fused(folder: Path) -> Decoder:
    """The folder's model through the kernels of GPUs."""
    spec = parse_model_spec(folder / "config.json")
    return load_model(
        folder,
        spec=spec,
        group=SingleRank(),
        backend=fused_backend(spec),
        dtype=torch.float32,
        device=CPU,
        num_positions=NUM_POSITIONS,
        progress=no_progress,
    )


def cache_of(spec: ModelSpec) -> KVCache:
    """Zeros."""
    layout = KVLayout.of_model(
        spec, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, num_ranks=1, dtype=torch.float32
    )
    return KVCache.allocate(layout, device=CPU)


class Pair:
    """Steps go through both runners, each with a cache of its own."""

    def __init__(self, folder: Path, *, uses_graphs: bool, num_tokenizer_ids: int) -> None:
        plain, fused = load(folder), load_fused(folder)
        spec = plain.spec
        part = VocabularyPart(0, spec.vocab_size, num_tokenizer_ids)
        self.device = ImmediateDevice()
        self.plain_cache, self.cache = cache_of(spec), cache_of(spec)
        self.plain = ModelRunner(
            model=plain,
            cache=self.plain_cache,
            sampler=Sampler(part=part, group=SingleRank()),
            num_slots=NUM_SLOTS,
        )
        assembly = assemble(
            model=fused,
            cache=self.cache,
            group=SingleRank(),
            device=self.device,
            limits=RunnerLimits(NUM_SLOTS, MAX_TOKENS, num_tokenizer_ids),
            uses_graphs=uses_graphs,
        )
        self.programs, self.runner = assembly.programs, assembly.runner

    def run(self, step: BatchStep, table: np.ndarray) -> tuple[SampledRows, SampledRows]:
        """What both make of it."""
        expected = self.plain.execute(replace(step, block_table=table[step.slots]))
        self.runner.launch(step, received_ns=time.monotonic_ns())
        assert self.runner.is_done()
        return expected, self.runner.collect().rows


class Tables:
    """The slots' blocks, as a plan would hand them out."""

    def __init__(self) -> None:
        self.table = np.zeros((NUM_SLOTS, BLOCKS_PER_SLOT), np.int32)
        self._free = list(range(NUM_BLOCKS - 1, 0, -1))
        self._num_blocks = [0] * NUM_SLOTS

    def start(self, slot: int) -> None:
        """Take the slot's blocks away."""
        used = self.table[slot, : self._num_blocks[slot]].tolist()
        self._free = used + self._free
        self._num_blocks[slot] = 0
        self.table[slot] = 0

    def grow(self, ends: dict[int, int]) -> NewBlocks:
        """Blocks for positions below the slots' ends."""
        found: list[tuple[int, int, int]] = []
        for slot in sorted(ends):
            while self._num_blocks[slot] * BLOCK_SIZE < ends[slot]:
                block, index = self._free.pop(), self._num_blocks[slot]
                self.table[slot, index] = block
                self._num_blocks[slot] += 1
                found.append((slot, index, block))
        columns = np.array(found, np.int32).reshape(-1, 3)
        return NewBlocks(columns[:, 0].copy(), columns[:, 1].copy(), columns[:, 2].copy())


def resident_step(
    rows: Sequence[Row], *, new_blocks: NewBlocks, sampling: SamplingColumns | None = None
) -> BatchStep:
    """The rows as a runner that keeps tables gets them."""
    empty = np.zeros((NUM_SLOTS, 0), np.int32)
    return replace(step_of(rows, table=empty, sampling=sampling), new_blocks=new_blocks)
