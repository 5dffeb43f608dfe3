"""The runner: last tokens, empty steps, rows that fail, steps that must be refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import TinyModel, make_tiny_checkpoint
from tests.model.rigs import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    NUM_SLOTS,
    Rig,
    Row,
    load,
    oracle,
    oracle_logits,
    random_tokens,
)
from worker_svc.batch_step import BatchStep, InvalidStepError, SamplingColumns
from worker_svc.execution.sampling_reference import ReferenceSampling, margin
from worker_svc.models.decoder import Decoder

MARGIN = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = TinyModel(family="qwen3", tied=True)
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), model=model)


@pytest.fixture(scope="module")
def model(folder: Path) -> Decoder:
    return load(folder)


@pytest.fixture
def rig(model: Decoder) -> Rig:
    return Rig(model, num_tokenizer_ids=NUM_IDS)


def seeded(temperatures: list[float], *, top_p: float = 1.0) -> SamplingColumns:
    count = len(temperatures)
    return replace(
        SamplingColumns.greedy(count),
        temperature=np.array(temperatures, np.float32),
        top_p=np.full(count, top_p, np.float32),
        seed=np.arange(count, dtype=np.uint64) + 77,
    )


def generate(
    rig: Rig, prompts: list[list[int]], sampling: SamplingColumns, count: int
) -> list[list[int]]:
    """`count` tokens of each prompt, all in one batch: one prefill step, then decode steps."""
    rows = [Row(slot, 0, prompt) for slot, prompt in enumerate(prompts)]
    outputs = [[token] for token in rig.runner.execute(rig.step(rows, sampling)).tokens.tolist()]
    for at in range(count - 1):
        rows = [Row(slot, len(prompt) + at, None) for slot, prompt in enumerate(prompts)]
        sampled = rig.runner.execute(rig.step(rows, sampling))
        assert not sampled.failed.any()
        for output, token in zip(outputs, sampled.tokens.tolist(), strict=True):
            output.append(token)
    return outputs


@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_every_token_is_the_best_perturbed_logit_of_the_oracle(
    rig: Rig, folder: Path, top_p: float
) -> None:
    reference = oracle(folder)
    temperatures = [0.0, 0.7, 1.5, 0.0, 0.3]
    prompts = [random_tokens(length, seed=length) for length in (1, 16, 17, 40, 63)]
    outputs = generate(rig, prompts, seeded(temperatures, top_p=top_p), 24)
    for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        logits = oracle_logits(reference, prompt + output).double().numpy()
        for at, token in enumerate(output):
            position = len(prompt) + at
            sampling = ReferenceSampling(
                seed=77 + row,
                position=position,
                temperature=temperatures[row],
                top_p=top_p,
                num_tokenizer_ids=NUM_IDS,
            )
            assert margin(logits[position - 1], token, sampling) < MARGIN
    assert min(len(set(output)) for output in outputs) > 3, "a model that repeats tests nothing"


def test_rows_that_do_not_sample_give_no_token(rig: Rig) -> None:
    tokens = random_tokens(30)
    rows = [Row(0, 0, tokens[:20], samples=False), Row(1, 0, tokens), Row(2, 0, [5], samples=False)]
    sampled = rig.runner.execute(rig.step(rows))
    assert sampled.tokens.shape == sampled.failed.shape == (1,)
    rest = rig.runner.execute(rig.step([Row(0, 20, tokens[20:])]))
    assert rest.tokens.tolist() == sampled.tokens.tolist()


def test_empty_steps_are_legal(rig: Rig) -> None:
    # scenario PR-03
    assert rig.runner.execute(rig.step([])).tokens.shape == (0,)
    unsampled = rig.runner.execute(rig.step([Row(0, 0, [1, 2, 3], samples=False)]))
    assert unsampled.tokens.shape == (0,)


def test_a_slot_that_sits_out_keeps_its_last_token(rig: Rig) -> None:
    prompts = [random_tokens(20, seed=1), random_tokens(9, seed=2)]
    expected = generate(rig, prompts, SamplingColumns.greedy(2), 5)
    first = [rig.runner.execute(rig.step([Row(s, 0, p)])).tokens for s, p in enumerate(prompts)]
    late = [int(token[0]) for token in first]
    outputs = [[late[0]], [late[1]]]
    for slot in (1, 0):  # one slot runs all its steps while the other waits
        for at in range(4):
            row = Row(slot, len(prompts[slot]) + at, None)
            outputs[slot] += rig.runner.execute(rig.step([row])).tokens.tolist()
    assert outputs == expected


def poison(rig: Rig, slot: int, place: int = 0) -> None:
    """Make one cached value of a slot no number."""
    block = int(rig.table[slot, place // BLOCK_SIZE])
    rig.cache.layers[0].values[block, place % BLOCK_SIZE, 0, 0] = torch.nan


def test_a_failed_row_disturbs_no_other_and_does_not_end_the_runner(rig: Rig) -> None:
    # scenario TP-08
    prompts = [random_tokens(20, seed=seed) for seed in range(4)]
    sampling = seeded([0.0, 0.8, 0.0, 0.8])
    expected = generate(rig, prompts, sampling, 4)
    generate(rig, prompts, sampling, 2)
    poison(rig, slot=1)
    for at in (1, 2):  # the second step decodes from a failed row's token
        rows = [Row(slot, len(prompt) + at, None) for slot, prompt in enumerate(prompts)]
        sampled = rig.runner.execute(rig.step(rows, sampling))
        assert sampled.failed.tolist() == [False, True, False, False]
        assert int(sampled.tokens[1]) == 0
        healthy = [0, 2, 3]
        assert sampled.tokens[healthy].tolist() == [expected[slot][at + 1] for slot in healthy]


def test_a_block_with_numbers_that_are_none_can_be_used_again(rig: Rig) -> None:
    # a failed row's block goes to another sequence; beyond its end lies what the failed row left
    prompts = [random_tokens(4, seed=1), random_tokens(60, seed=2)]
    expected = generate(rig, prompts, SamplingColumns.greedy(2), 5)
    for place in range(6 * BLOCK_SIZE):
        poison(rig, slot=0, place=place)
    assert generate(rig, prompts, SamplingColumns.greedy(2), 5) == expected


def test_a_slot_decodes_up_to_the_last_place_of_its_table(rig: Rig) -> None:
    # scenario CG-02
    prompt = random_tokens(6 * BLOCK_SIZE - 3)
    outputs = generate(rig, [prompt], SamplingColumns.greedy(1), 4)
    assert len(outputs[0]) == 4


BREAKS: dict[str, tuple[Callable[[BatchStep], BatchStep], str]] = {
    "slot outside": (lambda s: replace(s, slots=s.slots + np.int32(NUM_SLOTS)), "slots"),
    "no token": (lambda s: replace(s, num_tokens=s.num_tokens * np.int32(0)), "num_tokens"),
    "position below": (
        lambda s: replace(s, start_positions=s.start_positions - np.int32(1)),
        "start_positions",
    ),
    "position above": (
        lambda s: replace(s, start_positions=s.start_positions + np.int32(510)),
        "start_positions + num_tokens",
    ),
    "beyond the table": (
        lambda s: replace(s, start_positions=s.start_positions + np.int32(6 * BLOCK_SIZE - 2)),
        "block_table",
    ),
    "trash block": (lambda s: replace(s, block_table=s.block_table * np.int32(0)), "block_table"),
    "block outside": (
        lambda s: replace(s, block_table=s.block_table + np.int32(NUM_BLOCKS)),
        "block_table",
    ),
    "token outside": (lambda s: replace(s, token_ids=s.token_ids + np.int32(300)), "token_ids"),
    "token negative": (lambda s: replace(s, token_ids=s.token_ids - np.int32(300)), "token_ids"),
    "token missing": (lambda s: replace(s, token_ids=s.token_ids[1:]), "token_ids"),
    "decode of three": (
        lambda s: replace(s, is_decode=np.ones(1, np.bool_)),
        "num_tokens of decode rows",
    ),
    "row missing": (lambda s: replace(s, samples=s.samples[1:]), "samples"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_step_that_reaches_outside_is_refused_and_changes_nothing(rig: Rig, name: str) -> None:
    break_step, column = BREAKS[name]
    step = rig.step([Row(3, 0, [7, 8, 9])])
    before = rig.cache.layers[0].keys.clone()
    with pytest.raises(InvalidStepError) as refusal:
        rig.runner.execute(break_step(step))
    assert refusal.value.column == column
    assert torch.equal(rig.cache.layers[0].keys, before)
    assert rig.runner.execute(step).tokens.shape == (1,)
