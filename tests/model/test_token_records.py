"""What is told of tokens is what transformers' logits and hidden states say."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import TinyModel, make_tiny_checkpoint
from tests.model.rigs import Rig, Row, load, oracle, oracle_logits, random_tokens
from tests.model.wishes import random_logits, rules
from worker_svc.batch_step import SampledRows, StepRecords
from worker_svc.execution.token_records import RecordWish, records_of
from worker_svc.models.decoder import Decoder
from worker_svc.slot_rules import SlotRules

MODEL = TinyModel(family="qwen3", tied=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), model=MODEL)


@pytest.fixture(scope="module")
def model(folder: Path) -> Decoder:
    return load(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> torch.nn.Module:
    return oracle(folder)


@pytest.fixture
def rig(model: Decoder) -> Rig:
    return Rig(model, num_tokenizer_ids=NUM_IDS)


def run(rig: Rig, rows: list[Row], wanted: Mapping[int, SlotRules]) -> SampledRows:
    return rig.runner.execute(replace(rig.step(rows), rules=wanted))


def check_record(
    record: bytes, logits: torch.Tensor, token: int, *, num_top: int, ids: tuple[int, ...] = ()
) -> None:
    """The words are those of the softmax of these logits."""
    logprobs = torch.log_softmax(logits.double(), dim=0).numpy()
    words = np.frombuffer(record, np.int32)
    floats = words.view(np.float32)
    assert words.size == 2 + 2 * num_top + len(ids)
    assert abs(floats[0] - logprobs[token]) < 1e-4
    # ids as likely as the token but for the last bits may come before it or after
    assert (logprobs > logprobs[token] + 1e-5).sum() < words[1]
    assert words[1] <= (logprobs > logprobs[token] - 1e-5).sum()
    top, told = words[2 : 2 + 2 * num_top : 2], floats[3 : 3 + 2 * num_top : 2]
    assert len(set(top.tolist())) == num_top
    np.testing.assert_allclose(told, logprobs[top], atol=1e-4)
    np.testing.assert_allclose(told, np.sort(logprobs)[::-1][:num_top], atol=1e-4)
    np.testing.assert_allclose(floats[2 + 2 * num_top :], logprobs[list(ids)], atol=1e-4)


def test_records_have_the_words_of_the_softmax() -> None:
    logits = random_logits(3, 300, seed=5)
    wishes = [
        RecordWish(7, 0),
        RecordWish(int(logits[1].argmax()), 20, np.array([4, 4, 299], np.int32)),
        RecordWish(12, 300),
    ]
    found = records_of(logits, wishes)
    check_record(found[0], logits[0], 7, num_top=0)
    check_record(found[1], logits[1], wishes[1].token, num_top=20, ids=(4, 4, 299))
    assert np.frombuffer(found[1], np.int32)[1] == 1, "the likeliest has rank 1"
    check_record(found[2], logits[2], 12, num_top=300)


def test_equal_ids_share_a_rank_and_the_lowest_come_first() -> None:
    logits = torch.zeros(1, 50)
    logits[0, [9, 30]] = 1.0
    words = np.frombuffer(records_of(logits, [RecordWish(40, 4)])[0], np.int32)
    assert words[1] == 3
    assert words[2:10:2].tolist() == [9, 30, 0, 1]


def test_a_row_that_is_no_number_has_a_whole_record_of_none() -> None:
    logits = torch.zeros(1, 50)
    logits[0, 3] = torch.nan
    record = records_of(logits, [RecordWish(4, 3, np.array([5], np.int32))])[0]
    assert len(record) == 4 * 9
    assert np.isnan(np.frombuffer(record, np.float32)[[0, 3, 5, 7, 8]]).all()


def test_sampled_tokens_are_told_of_the_models_own_distribution(
    rig: Rig, reference: torch.nn.Module
) -> None:
    prompts = [random_tokens(9), random_tokens(20, seed=1), random_tokens(5, seed=2)]
    wishes: dict[int, SlotRules] = {
        0: rules(has_logprobs=True, num_top_logprobs=2),
        # what changes the choice does not change what is told
        2: rules(
            has_logprobs=True,
            num_top_logprobs=0,
            logprob_token_ids=np.array([8, 3], np.int32).tobytes(),
            bias={7: 100.0},
        ),
    }
    rows = [Row(slot, 0, prompt) for slot, prompt in enumerate(prompts)]
    texts = [list(prompt) for prompt in prompts]
    for step in range(3):
        sampled = run(rig, rows, wishes)
        records = sampled.records.token_records
        assert len(records) == 4 * (6 + 4)
        for slot, record in ((0, records[:24]), (2, records[24:])):
            logits = oracle_logits(reference, texts[slot])[-1]
            token = int(sampled.tokens[slot])
            ids = (8, 3) if slot == 2 else ()
            check_record(record, logits, token, num_top=2 if slot == 0 else 0, ids=ids)
        assert sampled.tokens[2] == 7
        for slot, text in enumerate(texts):
            text.append(int(sampled.tokens[slot]))
        rows = [Row(slot, len(text) - 1, None) for slot, text in enumerate(texts)]
        assert step >= 0


@pytest.mark.parametrize("first", [1, 6, 19, 20])
def test_prompts_are_told_chunk_by_chunk(rig: Rig, reference: torch.nn.Module, first: int) -> None:
    prompt = random_tokens(21, seed=4)
    wanted = rules(
        history=prompt,
        num_prompt_tokens=21,
        start={"prompt_records_from": first, "num_prompt_top_logprobs": 1},
    )
    other = random_tokens(6, seed=5)
    told = b""
    for number, (start, end) in enumerate(((0, 5), (5, 6), (6, 20), (20, 21))):
        row = Row(0, start, prompt[start:end], samples=end == 21)
        # another row before and after, of one token and of many
        beside = [Row(1, 6 * number, other), Row(2, number, [9])]
        told += run(rig, [beside[0], row, beside[1]], {1: wanted}).records.prompt_records
    logits = oracle_logits(reference, prompt)
    size = 4 * 4
    assert len(told) == size * (21 - first)
    for index, position in enumerate(range(first, 21)):
        record = told[index * size : (index + 1) * size]
        check_record(record, logits[position - 1], prompt[position], num_top=1)


def hidden_states(reference: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        states: torch.Tensor = reference.model(torch.tensor([tokens])).last_hidden_state[0]  # type: ignore[operator]
    return states


@pytest.mark.parametrize("pooling", [1, 2])
def test_vectors_are_the_last_or_the_mean_hidden_state(
    rig: Rig, reference: torch.nn.Module, pooling: int
) -> None:
    prompts = [random_tokens(21, seed=6), random_tokens(8, seed=7)]
    wanted = [rules(num_prompt_tokens=len(one), start={"pooling": pooling}) for one in prompts]
    first = run(
        rig,
        [Row(0, 0, prompts[0][:10], samples=False), Row(1, 0, prompts[1]), Row(2, 0, [5])],
        dict(enumerate(wanted)),
    )
    second = run(rig, [Row(0, 10, prompts[0][10:])], {0: wanted[0]})
    assert first.tokens[0] == 0
    assert second.tokens.tolist() == [0], "there is no token, so it is 0"
    for prompt, told in zip(prompts, (second.records, first.records), strict=True):
        states = hidden_states(reference, prompt)
        expected = states[-1] if pooling == 1 else states.mean(dim=0)
        vector = np.frombuffer(told.pooled, np.float32)
        np.testing.assert_allclose(vector, expected.numpy(), rtol=1e-3, atol=1e-4)


def test_a_failed_row_has_no_record_and_no_vector(rig: Rig) -> None:
    prompt = random_tokens(20)
    wanted = {
        0: rules(has_logprobs=True),
        1: rules(num_prompt_tokens=20, start={"pooling": 1}),
        2: rules(has_logprobs=True),
    }
    rows = [Row(slot, 0, prompt[:19], samples=False) for slot in range(3)]
    run(rig, rows, {})
    for slot in (0, 1):
        rig.cache.layers[0].values[rig.table[slot, 0], 3, 0, 0] = torch.nan
    sampled = run(rig, [Row(slot, 19, prompt[19:]) for slot in range(3)], wanted)
    assert sampled.failed.tolist() == [True, True, False]
    assert len(sampled.records.token_records) == 8
    assert sampled.records.pooled == b""


def test_a_step_that_tells_nothing_has_no_records(rig: Rig) -> None:
    sampled = run(rig, [Row(0, 0, random_tokens(5))], {})
    assert sampled.records == StepRecords() or sampled.records.token_records == b""
