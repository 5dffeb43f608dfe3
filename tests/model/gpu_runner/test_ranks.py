"""Two ranks through the runner for GPUs give what one rank on the CPU gives, however they sum."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import make_tiny_checkpoint
from tests.model.gpu_runner.gpu_rigs import Pair, new_tables
from tests.model.gpu_runner.test_gpu_runner import MODEL, assert_same
from tests.model.mapped_buffers import make_files, map_files
from tests.model.rank_processes import run_ranks
from tests.model.rigs import Row, random_tokens, resident_step
from worker_svc.batch_step import SamplingColumns
from worker_svc.gpu_backend import Ranks
from worker_svc.parallel.gloo import GlooGroup
from worker_svc.parallel.peer_memory import PeerMemory, SwitchOver

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="ranks on CPUs")

NUM_RANKS = 2
ROW_BYTES = 4 * MODEL.hidden_size
STEPS = [
    [Row(0, 0, random_tokens(27))],
    [Row(0, 27, None), Row(1, 0, random_tokens(9, seed=1))],
    [Row(0, 28, None), Row(1, 9, None)],
    [Row(1, 10, None)],
    [Row(0, 29, None), Row(1, 11, None)],
]


def sampling_of(rows: list[Row], *, has_filters: bool) -> SamplingColumns:
    """A greedy and a noisy sequence."""
    slots = np.array([row.slot for row in rows])
    return replace(
        SamplingColumns.greedy(len(rows)),
        temperature=(0.9 * slots).astype(np.float32),
        seed=(slots + 7).astype(np.uint64),
        top_k=np.where(has_filters & (slots == 1), 5, 0).astype(np.int32),
    )


def run_rank(rank: int, folder: Path) -> None:
    """What each process does: both see every step, and each checks its own results."""
    group = GlooGroup.connect(
        rank=rank, size=NUM_RANKS, rendezvous=folder / "rendezvous", timeout_s=60.0
    )
    buffers, maps = map_files(
        folder, rank, NUM_RANKS, num_blocks=3, bytes_per_region=64 * ROW_BYTES
    )
    # steps of few tokens, of some, and of many for neither
    switch_over = SwitchOver(one_shot=4 * ROW_BYTES, two_shot=24 * ROW_BYTES)
    peers = CountingPeers(buffers, switch_over, owner=maps)
    pair = Pair(
        folder / "model",
        uses_graphs=False,
        num_tokenizer_ids=NUM_IDS,
        ranks=Ranks(group, peers),
    )
    tables = new_tables()
    sizes = []
    for rows in STEPS:
        ends = {row.slot: row.start + len(row.tokens or [0]) for row in rows}
        has_filters = rows is STEPS[-1]
        step = resident_step(
            rows, new_blocks=tables.grow(ends), sampling=sampling_of(rows, has_filters=has_filters)
        )
        sizes.append(step.token_ids.size)
        assert_same(*pair.run(step, tables.table))
    assert {(size > 4) + (size > 24) for size in sizes} == {0, 1, 2}, "not every way was gone"
    small = [size for size in sizes if size <= 24]
    assert peers.num_sums == len(small) * (1 + 2 * MODEL.num_layers)
    group.close()


class CountingPeers(PeerMemory):
    """Counts the sums that go through shared memory."""

    num_sums = 0

    def sum_add_rms_norm(
        self, part: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.num_sums += 1
        return super().sum_add_rms_norm(part, residual, weight, epsilon=epsilon)


def test_two_ranks_give_the_tokens_of_one(tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path / "model", model=MODEL)
    make_files(tmp_path, NUM_RANKS)
    run_ranks(NUM_RANKS, run_rank, tmp_path)
