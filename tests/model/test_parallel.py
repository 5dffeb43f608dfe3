"""Two ranks over gloo compute and choose what one rank does."""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fakes.checkpoints import TinyModel, make_tiny_checkpoint
from tests.model.rigs import Rig, Row, load, random_tokens
from worker_svc.batch_step import SamplingColumns, TokenMasks
from worker_svc.models.errors import ParallelSizeError
from worker_svc.parallel.gloo import GlooGroup
from worker_svc.parallel.group import ParallelGroup

NUM_RANKS = 2
TIMEOUT_S = 60.0
PROMPTS = [random_tokens(length, seed=length) for length in (1, 16, 23, 50, 40, 33)]
MODELS = {
    # an odd vocabulary: the second rank has a row that does not exist
    "qwen3": TinyModel(family="qwen3", vocab_size=289),
    "qwen2-tied": TinyModel(family="qwen2", tied=True),
    # one KV head for two ranks
    "llama-shared-head": TinyModel(
        family="llama", num_kv_heads=1, attention_bias=True, mlp_bias=True
    ),
}


def sampling() -> SamplingColumns:
    """Greedy, random and filtered rows, one with an early stop id on each rank's part."""
    return replace(
        SamplingColumns.greedy(6),
        temperature=np.array([0, 0.8, 0.8, 0.9, 1.2, 0], np.float32),
        top_k=np.array([0, 0, 30, 0, 0, 0], np.int32),
        top_p=np.array([1, 1, 0.9, 0.7, 1, 1], np.float32),
        min_p=np.array([0, 0, 0, 0.02, 0, 0], np.float32),
        seed=np.arange(6, dtype=np.uint64) + 2**63,
        min_position=np.array([0, 1000, 0, 0, 1000, 1000], np.int32),
        stop_ids=np.array([[-1, -1], [5, 200]] * 3, np.int32),
    )


def masks() -> TokenMasks:
    words = np.zeros((1, 10), np.int32)
    words[0, [1, 8]] = 0b1010
    return TokenMasks(rows=np.array([5], np.int32), words=words)


def outcome(folder: Path, group: ParallelGroup | None = None) -> dict[str, np.ndarray]:
    """Logits of a prefill on this rank, and the tokens of eight steps."""
    rig = Rig(load(folder, group=group), group=group, num_tokenizer_ids=259)
    rows = [Row(slot, 0, prompt) for slot, prompt in enumerate(PROMPTS)]
    logits = rig.logits(rows)
    steps = [replace(rig.step(rows, sampling()), masks=masks())]
    for at in range(7):
        rows = [Row(slot, len(prompt) + at, None) for slot, prompt in enumerate(PROMPTS)]
        steps.append(replace(rig.step(rows, sampling()), masks=masks()))
    sampled = [rig.runner.execute(step) for step in steps]
    assert not any(rows.failed.any() for rows in sampled)
    return {"logits": logits.numpy(), "tokens": np.stack([rows.tokens for rows in sampled])}


def run_rank(rank: int, folder: Path) -> None:
    """What each spawned process does: every model, results into files."""
    torch.set_num_threads(1)
    group = GlooGroup.connect(
        rank=rank, size=NUM_RANKS, rendezvous=folder / "rendezvous", timeout_s=TIMEOUT_S
    )
    assert (group.rank, group.size) == (rank, NUM_RANKS)
    for name in MODELS:
        np.savez(folder / f"{name}-{rank}.npz", **outcome(folder / name, group))  # type: ignore[arg-type]  # arrays only
    group.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints, and what each rank of two made of them."""
    folder = tmp_path_factory.mktemp("parallel")
    for name, model in MODELS.items():
        make_tiny_checkpoint(folder / name, model=model)
    with ProcessPoolExecutor(NUM_RANKS, mp_context=get_context("spawn")) as pool:
        tuple(pool.map(run_rank, range(NUM_RANKS), [folder] * NUM_RANKS, timeout=TIMEOUT_S))
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_two_ranks_compute_what_one_does(folder: Path, name: str) -> None:
    expected = outcome(folder / name)
    ranks = [np.load(folder / f"{name}-{rank}.npz") for rank in range(NUM_RANKS)]
    logits = np.concatenate([rank["logits"] for rank in ranks], axis=1)
    vocab_size = MODELS[name].vocab_size
    assert np.abs(logits[:, :vocab_size] - expected["logits"]).max() < 1e-4
    assert (ranks[0]["tokens"] == ranks[1]["tokens"]).all()
    assert (ranks[0]["tokens"] == expected["tokens"]).all()
    assert len(np.unique(expected["tokens"])) > 12


def test_each_rank_reads_its_own_part_only(tmp_path: Path) -> None:
    class SecondOfTwo:
        rank, size = 1, 2

        def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
            raise AssertionError("loading needs no exchange")

        all_gather = all_reduce

    folder = make_tiny_checkpoint(tmp_path, model=MODELS["qwen3"])
    totals: list[int] = []
    load(folder, progress=lambda _, total: totals.append(total))
    whole = totals[-1]
    load(folder, group=SecondOfTwo(), progress=lambda _, total: totals.append(total))
    # norms are read by both ranks, everything else by halves
    assert whole / 2 < totals[-1] < whole / 2 + 4096


@pytest.mark.parametrize(
    ("size", "field"),
    [(3, "num_attention_heads"), (8, "num_attention_heads"), (4, "intermediate_size")],
)
def test_a_number_of_ranks_that_does_not_fit_is_refused(
    tmp_path: Path, size: int, field: str
) -> None:
    class Ranks:
        rank = 0

        def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
            raise AssertionError("refused before any exchange")

        all_gather = all_reduce

        def __init__(self) -> None:
            self.size = size

    folder = make_tiny_checkpoint(tmp_path, model=TinyModel(intermediate_size=82))
    with pytest.raises(ParallelSizeError, match="--tensor-parallel-size") as refusal:
        load(folder, group=Ranks())
    assert refusal.value.field == field


def test_a_rank_that_waits_alone_gives_up(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        GlooGroup.connect(rank=0, size=2, rendezvous=tmp_path / "alone", timeout_s=0.5)
