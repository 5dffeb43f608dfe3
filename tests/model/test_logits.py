"""Logits equal transformers', however a sequence is cut into steps and whatever runs beside it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fakes.checkpoints import TinyModel, make_tiny_checkpoint
from tests.model.rigs import BLOCK_SIZE, Rig, Row, load, oracle, oracle_logits, random_tokens

TOLERANCE = 1e-4
LENGTHS = (1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 5 * BLOCK_SIZE + 3)
CHUNKS = (1, 7, BLOCK_SIZE, BLOCK_SIZE + 1, 5 * BLOCK_SIZE + 3)

LINEAR = {"rope_type": "linear", "factor": 2.5}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}

MODELS = {
    "qwen3": TinyModel(family="qwen3"),
    "qwen3-tied-wide-heads": TinyModel(family="qwen3", tied=True, head_dim=32, spelling=4),
    "qwen3-biased-yarn": TinyModel(family="qwen3", attention_bias=True, rope=YARN),
    "qwen2": TinyModel(family="qwen2"),
    "qwen2-tied-yarn": TinyModel(family="qwen2", tied=True, rope=YARN, spelling=4),
    "llama": TinyModel(family="llama", num_kv_heads=4),
    "llama-tied-linear": TinyModel(family="llama", tied=True, rope=LINEAR),
    "llama-llama3": TinyModel(family="llama", rope=LLAMA3, num_heads=6, num_kv_heads=3),
    "llama-biased": TinyModel(family="llama", attention_bias=True, mlp_bias=True, num_kv_heads=1),
}


@pytest.fixture(scope="module", params=MODELS.values(), ids=list(MODELS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model: TinyModel = request.param
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), model=model)


@pytest.fixture(scope="module")
def rig(folder: Path) -> Rig:
    return Rig(load(folder))


@pytest.fixture(scope="module")
def reference(folder: Path) -> torch.nn.Module:
    return oracle(folder)


def worst(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max())


@pytest.mark.parametrize("length", LENGTHS)
def test_logits_equal_transformers_whole_and_in_chunks(
    rig: Rig, reference: torch.nn.Module, length: int
) -> None:
    # scenario CP-01: keys end at the chunk, not at the prompt
    tokens = random_tokens(length, seed=length)
    expected = oracle_logits(reference, tokens)
    assert float(expected.std()) > 0.5, "a flat model would equal anything"
    for slot, chunk in enumerate(CHUNKS):
        for start in range(0, length, chunk):
            part = tokens[start : start + chunk]
            found = rig.logits([Row(slot, start, part)])
            end = start + len(part)
            assert worst(found[0], expected[end - 1]) < TOLERANCE, f"chunk {chunk}, end {end}"


def test_rows_of_one_step_do_not_touch_each_other(rig: Rig, reference: torch.nn.Module) -> None:
    # decode rows, one-token and longer chunks of eight sequences, cut at random, in any order
    random = np.random.default_rng(7)
    lengths = (3, 17, 90, 32, 64, 41, 95, 1)
    sequences = [random_tokens(length, seed=100 + length) for length in lengths]
    expected = [oracle_logits(reference, tokens) for tokens in sequences]
    done = [0] * len(sequences)
    while any(at < len(tokens) for at, tokens in zip(done, sequences, strict=True)):
        rows: list[Row] = []
        for slot in random.permutation(len(sequences)).tolist():
            size = int(random.choice([0, 1, 1, 1, 2, 5, 16, 30]))
            part = sequences[slot][done[slot] : done[slot] + size]
            if part:
                samples = not rows or bool(random.integers(4))
                rows.append(Row(slot, done[slot], part, samples=samples))
                done[slot] += len(part)
        sampling = [row.slot for row in rows if row.samples]
        if not rows:
            continue
        found = rig.logits(rows)
        assert found.shape[0] == len(sampling)
        for logits, slot in zip(found, sampling, strict=True):
            assert worst(logits, expected[slot][done[slot] - 1]) < TOLERANCE


def test_bfloat16_stays_near_float32(folder: Path, reference: torch.nn.Module) -> None:
    tokens = random_tokens(40, seed=3)
    expected = oracle_logits(reference, tokens)[-1]
    rig = Rig(load(folder, dtype=torch.bfloat16), dtype=torch.bfloat16)
    found = rig.logits([Row(0, 0, tokens)])[0].float()
    correlation = torch.corrcoef(torch.stack((found, expected)))[0, 1]
    assert float(correlation) > 0.995
