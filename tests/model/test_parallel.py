"""Two, four and eight ranks over gloo compute and choose what one rank does."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.fakes.checkpoints import TinyModel, make_tiny_checkpoint
from tests.fakes.plan_writer import int32s
from tests.model.rank_processes import run_ranks
from tests.model.rigs import Rig, Row, load, random_tokens
from tests.model.wishes import rules
from worker_svc.batch_step import SamplingColumns, TokenMasks
from worker_svc.models.errors import ParallelSizeError
from worker_svc.parallel.gloo import GlooGroup
from worker_svc.parallel.group import ParallelGroup
from worker_svc.weights.checkpoint import Checkpoint, StoredTensor

TIMEOUT_S = 60.0
PROMPTS = [random_tokens(length, seed=length) for length in (1, 16, 23, 50, 40, 33)]
MODELS = {
    # two KV heads for four and eight ranks; an odd vocabulary: the last rank has rows too many
    "qwen3-many-heads": TinyModel(family="qwen3", num_heads=8, vocab_size=289),
    # an odd vocabulary: the second rank has a row that does not exist
    "qwen3": TinyModel(family="qwen3", vocab_size=289),
    "qwen2-tied": TinyModel(family="qwen2", tied=True),
    # one KV head for two ranks
    "llama-shared-head": TinyModel(
        family="llama", num_kv_heads=1, attention_bias=True, mlp_bias=True
    ),
}
MODELS_OF_RANKS = {2: tuple(MODELS), 4: ("qwen3-many-heads",), 8: ("qwen3-many-heads",)}


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
    return {
        "logits": logits.numpy(),
        "tokens": np.stack([rows.tokens for rows in sampled]),
        **ruled_outcome(folder, group),
    }


def ruled_outcome(folder: Path, group: ParallelGroup | None) -> dict[str, np.ndarray]:
    """Tokens under rules that change logits on every rank's part, and what is told of them."""
    rig = Rig(load(folder, group=group), group=group, num_tokenizer_ids=259)
    told: dict[str, Any] = {"has_logprobs": True, "num_top_logprobs": 3}
    wanted = [
        rules(history=PROMPTS[0], num_prompt_tokens=1, frequency_penalty=1.5, **told),
        rules(history=PROMPTS[1], num_prompt_tokens=16, repetition_penalty=1.5, **told),
        rules(bias={3: 4.0, 100: 5.0, 258: 6.0}, logprob_token_ids=int32s((3, 258)), **told),
        rules(history=PROMPTS[3], bad_sequences=[[5], [200], [PROMPTS[3][-1], 7]], **told),
        rules(allowed=[4, 90, 150, 220, 250], **told),
        rules(
            history=PROMPTS[5],
            num_prompt_tokens=33,
            start={"prompt_records_from": 9, "num_prompt_top_logprobs": 2, "pooling": 2},
        ),
    ]
    sampled = []
    for at in range(4):
        rows = [
            Row(slot, 0 if at == 0 else len(prompt) + at - 1, prompt if at == 0 else None)
            for slot, prompt in enumerate(PROMPTS[: 6 if at == 0 else 5])
        ]
        chosen = dict(enumerate(wanted[: len(rows)]))
        step = replace(rig.step(rows, first_rows(sampling(), len(rows))), rules=chosen)
        sampled.append(rig.runner.execute(step))
    records = [
        one.records.token_records + one.records.prompt_records + one.records.pooled
        for one in sampled
    ]
    return {
        "ruled_tokens": np.concatenate([rows.tokens for rows in sampled]),
        "records": np.frombuffer(b"".join(records), np.int32),
    }


def first_rows(columns: SamplingColumns, count: int) -> SamplingColumns:
    return SamplingColumns(
        *(getattr(columns, name)[:count] for name in SamplingColumns.__dataclass_fields__)
    )


def run_rank(rank: int, size: int, folder: Path) -> None:
    """What each process does: its models, results into files."""
    group = GlooGroup.connect(
        rank=rank, size=size, rendezvous=folder / f"rendezvous-{size}", timeout_s=TIMEOUT_S
    )
    assert (group.rank, group.size) == (rank, size)
    for name in MODELS_OF_RANKS[size]:
        np.savez(folder / f"{name}-{size}-{rank}.npz", **outcome(folder / name, group))  # type: ignore[arg-type]  # arrays only
    group.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints, and what each rank of every number of ranks made of them."""
    folder = tmp_path_factory.mktemp("parallel")
    for name, model in MODELS.items():
        make_tiny_checkpoint(folder / name, model=model)
    for size in MODELS_OF_RANKS:
        run_ranks(size, run_rank, size, folder)
    return folder


@pytest.mark.parametrize(
    ("size", "name"), [(size, name) for size, names in MODELS_OF_RANKS.items() for name in names]
)
def test_many_ranks_compute_what_one_does(folder: Path, size: int, name: str) -> None:
    # the same tokens: each is so the best of one rank's logits after the tokens before it
    expected = outcome(folder / name)
    ranks = [np.load(folder / f"{name}-{size}-{rank}.npz") for rank in range(size)]
    logits = np.concatenate([rank["logits"] for rank in ranks], axis=1)
    vocab_size = MODELS[name].vocab_size
    assert np.abs(logits[:, :vocab_size] - expected["logits"]).max() < 1e-4
    for rank in ranks:
        assert (rank["tokens"] == expected["tokens"]).all()
        assert (rank["ruled_tokens"] == expected["ruled_tokens"]).all()
        assert_same_words(rank["records"], expected["records"])
    assert len(np.unique(expected["tokens"])) > 12


def assert_same_words(found: np.ndarray, expected: np.ndarray) -> None:
    """Integers are equal, numbers nearly."""
    assert found.size == expected.size > 0
    is_close = np.isclose(found.view(np.float32), expected.view(np.float32), atol=1e-4, rtol=1e-3)
    is_number = np.abs(expected) > 1 << 20  # ids and ranks are small
    assert (np.where(is_number, is_close, found == expected)).all()


@dataclass(frozen=True)
class Loading:
    """A rank that only loads: that needs no exchange."""

    rank: int
    size: int

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        raise AssertionError("loading needs no exchange")

    all_gather = all_reduce


@pytest.mark.parametrize("size", [2, 4, 8])
def test_each_rank_reads_its_own_part_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    model = MODELS["qwen3-many-heads"]
    folder = make_tiny_checkpoint(tmp_path, model=model)
    reads: list[Counter[tuple[str, int]]] = []
    read = StoredTensor.read

    def counted(stored: StoredTensor, part: tuple[slice, ...]) -> torch.Tensor:
        found = read(stored, part)
        reads[-1].update((stored.name, index) for index in _indexes(stored, part))
        return found

    monkeypatch.setattr(StoredTensor, "read", counted)
    for rank in range(size):
        reads.append(Counter())
        load(folder, group=Loading(rank, size))
        assert max(reads[-1].values()) == 1, "a rank reads nothing twice"
    times_read = sum(reads, Counter())
    sharers = {"k_proj": size // model.num_kv_heads, "v_proj": size // model.num_kv_heads}
    for (name, _), times in times_read.items():
        is_norm = "norm" in name
        layer = name.split(".")[-2]
        assert times == (size if is_norm else sharers.get(layer, 1)), name
    with Checkpoint(folder) as checkpoint:
        every = [checkpoint.tensor(name) for name in checkpoint.names()]
        wholes = [(one, tuple(slice(0, size) for size in one.shape)) for one in every]
        assert len(times_read) == sum(len(list(_indexes(one, part))) for one, part in wholes)


def _indexes(stored: StoredTensor, part: tuple[slice, ...]) -> Iterator[int]:
    """The places of the part's values in the tensor."""
    places = torch.arange(math.prod(stored.shape)).view(stored.shape)[part]
    yield from places.flatten().tolist()


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
