"""Two runners of one model side by side: the CPU's, and the one for GPUs on a fake device."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from tests.fakes.immediate_device import ImmediateDevice
from tests.fakes.slot_tables import SlotTables
from tests.model.rigs import BLOCK_SIZE, CPU, NUM_BLOCKS, load, no_progress
from worker_svc.attention.triton_backend import TritonBackend
from worker_svc.batch_step import BatchStep, SampledRows
from worker_svc.execution.gpu_assembly import RunnerLimits, assemble
from worker_svc.execution.kv_cache import KVCache, KVLayout
from worker_svc.execution.runner import ModelRunner
from worker_svc.execution.sampler import Sampler
from worker_svc.execution.sampling_plan import VocabularyPart
from worker_svc.execution.triton_layers import TritonLayers
from worker_svc.gpu_backend import Ranks
from worker_svc.layers.fused import FusedBackend
from worker_svc.models.decoder import Decoder
from worker_svc.models.spec import ModelSpec, parse_model_spec
from worker_svc.parallel.group import SingleRank
from worker_svc.weights.loader import load_model

NUM_SLOTS = 6
MAX_TOKENS = 80
NUM_POSITIONS = 128
ALONE = Ranks(SingleRank())


def new_tables() -> SlotTables:
    """Nobody has a block."""
    return SlotTables(
        num_slots=NUM_SLOTS,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        blocks_per_slot=NUM_POSITIONS // BLOCK_SIZE,
    )


def fused_backend(spec: ModelSpec, ranks: Ranks) -> FusedBackend:
    """Triton all the way."""
    attention = TritonBackend.create(
        num_heads=spec.num_heads // ranks.group.size,
        num_kv_heads=max(1, spec.num_kv_heads // ranks.group.size),
        head_dim=spec.head_dim,
        most_rows=NUM_SLOTS,
        device=CPU,
    )
    return FusedBackend(TritonLayers(ranks.group, peers=ranks.peers), attention)


def load_fused(folder: Path, ranks: Ranks = ALONE) -> Decoder:
    """The folder's model, or this rank's part of it, through the kernels of GPUs."""
    spec = parse_model_spec(folder / "config.json")
    return load_model(
        folder,
        spec=spec,
        group=ranks.group,
        backend=fused_backend(spec, ranks),
        dtype=torch.float32,
        device=CPU,
        num_positions=NUM_POSITIONS,
        progress=no_progress,
    )


def cache_of(spec: ModelSpec, *, num_ranks: int = 1) -> KVCache:
    """Zeros."""
    layout = KVLayout.of_model(
        spec,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        num_ranks=num_ranks,
        dtype=torch.float32,
    )
    return KVCache.allocate(layout, device=CPU)


class Pair:
    """Steps go through both runners, each with a cache of its own.

    With `ranks` the one for GPUs is one of several; the CPU's is alone.
    """

    def __init__(
        self, folder: Path, *, uses_graphs: bool, num_tokenizer_ids: int, ranks: Ranks = ALONE
    ) -> None:
        plain, fused = load(folder), load_fused(folder, ranks)
        spec = plain.spec
        part = VocabularyPart(0, spec.vocab_size, num_tokenizer_ids)
        self.device = ImmediateDevice()
        self.plain_cache = cache_of(spec)
        self.cache = cache_of(spec, num_ranks=ranks.group.size)
        self.plain = ModelRunner(
            model=plain,
            cache=self.plain_cache,
            sampler=Sampler(part=part, group=SingleRank()),
            num_slots=NUM_SLOTS,
        )
        assembly = assemble(
            model=fused,
            cache=self.cache,
            group=ranks.group,
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
