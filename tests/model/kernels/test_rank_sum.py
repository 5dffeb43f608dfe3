"""Ranks that map each other's buffers sum, add and norm, launch after launch, without losing step.

Here ranks are processes and the buffers files that all of them map; the kernel is the one of GPUs.
"""

import itertools
from pathlib import Path

import pytest
import torch

from tests.model.kernels.conftest import HAS_DEVICE
from tests.model.mapped_buffers import make_files, map_files
from tests.model.rank_processes import run_ranks
from worker_svc.kernels import references
from worker_svc.kernels.rank_sum import RankBuffers, sum_add_rms_norm

pytestmark = pytest.mark.skipif(HAS_DEVICE, reason="tests/gpu/test_gpu_rank_sum.py does it there")

EPSILON, FEATURES, NUM_BLOCKS = 1e-6, 24, 3
# tokens and whether in two shots: one row, fewer rows than blocks, more than one for a block; the
# same way twice and three times over, so that both halves of a region come round again
LAUNCHES = [
    *[(1, False), (1, False), (5, True), (9, True), (9, True), (7, False), (7, False)],
    (2, True),
]


def inputs(rank: int, launch: int, num_tokens: int) -> tuple[torch.Tensor, ...]:
    """A rank's part, and the residual and the weight that all ranks have."""
    own = torch.Generator().manual_seed(1000 * rank + launch)
    common = torch.Generator().manual_seed(launch)
    return (
        torch.randn(num_tokens, FEATURES, generator=own),
        torch.randn(num_tokens, FEATURES, generator=common),
        torch.randn(FEATURES, generator=common),
    )


def run_rank(rank: int, num_ranks: int, folder: Path) -> None:
    """What each process does."""
    buffers, _maps = map_files(
        folder, rank, num_ranks, num_blocks=NUM_BLOCKS, bytes_per_region=3 * 4 * FEATURES
    )
    results: list[torch.Tensor] = []
    for launch, (num_tokens, is_two_shot) in enumerate(LAUNCHES):
        part, residual, weight = inputs(rank, launch, num_tokens)
        results += sum_add_rms_norm(
            part,
            residual,
            weight,
            epsilon=EPSILON,
            buffers=buffers,
            is_two_shot=is_two_shot,
        )
    torch.save(results, folder / f"results-{rank}")


@pytest.mark.parametrize("num_ranks", [4])
def test_all_ranks_have_the_norm_of_the_sum(tmp_path: Path, num_ranks: int) -> None:
    make_files(tmp_path, num_ranks)
    run_ranks(num_ranks, run_rank, num_ranks, tmp_path)
    results = [torch.load(tmp_path / f"results-{rank}") for rank in range(num_ranks)]
    for other in results[1:]:
        assert all(itertools.starmap(torch.equal, zip(results[0], other, strict=True)))
    for launch, (num_tokens, _) in enumerate(LAUNCHES):
        parts = [inputs(rank, launch, num_tokens)[0] for rank in range(num_ranks)]
        _, residual, weight = inputs(0, launch, num_tokens)
        out, total = results[0][2 * launch : 2 * launch + 2]
        torch.testing.assert_close(total, torch.stack(parts).sum(dim=0) + residual)
        torch.testing.assert_close(out, references.rms_norm(total, weight, EPSILON))


def test_both_ways_give_the_same_bits_on_one_rank() -> None:
    # one rank meets itself: what is left is the arithmetic
    found = []
    for is_two_shot in (False, True):
        buffers = RankBuffers(
            addresses=torch.zeros(1, dtype=torch.int64),
            rank=0,
            num_ranks=1,
            num_blocks=2,
            bytes_per_region=4 * 4 * FEATURES,
        )
        memory = torch.zeros(buffers.num_bytes, dtype=torch.uint8)
        buffers.addresses.fill_(memory.data_ptr())
        part, residual, weight = inputs(0, 0, 7)
        found.append(
            sum_add_rms_norm(
                part,
                residual,
                weight,
                epsilon=EPSILON,
                buffers=buffers,
                is_two_shot=is_two_shot,
            )
        )
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_a_message_that_does_not_fit_is_known_before_it_is_sent() -> None:
    buffers = RankBuffers(
        addresses=torch.zeros(2, dtype=torch.int64),
        rank=0,
        num_ranks=2,
        num_blocks=NUM_BLOCKS,
        bytes_per_region=2 * 4 * FEATURES + 16,
    )
    assert buffers.holds(torch.zeros(2 * NUM_BLOCKS, FEATURES))
    assert not buffers.holds(torch.zeros(2 * NUM_BLOCKS + 1, FEATURES))
