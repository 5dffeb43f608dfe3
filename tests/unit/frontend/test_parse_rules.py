"""Changes of logits and wishes for log probabilities have one meaning each, or name their fault."""

from __future__ import annotations

import asyncio
import math
import struct
from typing import Any

import pytest

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.model import ServedModel
from scheduler_svc.frontend.submission import new_record
from scheduler_svc.security.key_records import Caller
from tests.fakes.byte_tokenizer import END_ID, NUM_IDS
from tests.unit.frontend.parsing import parse, violations_of

NAN, INF = math.nan, math.inf


def generation(*, output: dict[str, Any] | None = None, **sampling: Any) -> api.Generation:
    return api.Generation(
        prompt=api.Prompt(text="hi"),
        sampling=api.SamplingParams(**sampling),
        output=api.OutputParams(**(output or {})),
    )


def with_value(name: str, value: float) -> api.Generation:
    sampling: dict[str, Any] = {name: value}
    return generation(**sampling)


def ints(column: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(column) // 4}i", column))


@pytest.mark.parametrize(
    ("name", "default", "good", "bad"),
    [
        ("repetition_penalty", 1.0, (0.01, 1.3, 100.0), (0, 0.001, 101, -1, NAN, INF, 1e-30)),
        ("frequency_penalty", 0.0, (-2, 0, 2), (-2.1, 2.1, NAN, INF, -INF)),
        ("presence_penalty", 0.0, (-2, 0, 2), (-2.1, 2.1, NAN, INF, -INF)),
    ],
)
def test_a_penalty_is_in_its_range_or_named(
    model: ServedModel, name: str, default: float, good: tuple[float, ...], bad: tuple[float, ...]
) -> None:
    assert getattr(parse(model, generation()).rules, name) == default
    for value in good:
        found = getattr(parse(model, with_value(name, value)).rules, name)
        assert found == pytest.approx(value)
    for value in bad:
        found = violations_of(model, with_value(name, value))
        assert list(found) == [f"generation.sampling.{name}"]
        assert "must be" in found[f"generation.sampling.{name}"]


def test_biased_ids_come_in_order_and_each_fault_is_named(model: ServedModel) -> None:
    rules = parse(model, generation(logit_bias={7: -100, 3: 0.5, 287: 100})).rules
    assert rules.logit_bias == ((3, 0.5), (7, -100.0), (287, 100.0))
    found = violations_of(model, generation(logit_bias={-1: 0, 288: 0, 4: NAN, 5: 101, 6: 1}))
    assert set(found) == {f"generation.sampling.logit_bias[{key}]" for key in (-1, 288, 4, 5)}
    many = violations_of(model, generation(logit_bias=dict.fromkeys(range(1025), 0.0)))
    assert many == {"generation.sampling.logit_bias": "must have at most 1024 ids, has 1025"}


def test_allowed_ids_are_a_set_that_leaves_a_choice(model: ServedModel) -> None:
    assert parse(model, generation(allowed_token_ids=[9, 2, 9])).rules.allowed_token_ids == (2, 9)
    field = "generation.sampling.allowed_token_ids"
    assert set(violations_of(model, generation(allowed_token_ids=[1, 288]))) == {f"{field}[1]"}
    unknown = violations_of(model, generation(allowed_token_ids=[NUM_IDS, NUM_IDS + 1]))
    assert set(unknown) == {field}
    too_many = violations_of(model, generation(allowed_token_ids=[1] * 65_537))
    assert too_many == {field: "must have at most 65536 ids, has 65537"}
    only_ends = generation(allowed_token_ids=[END_ID])
    assert violations_of(model, only_ends) == {}
    only_ends.stopping.min_tokens = 1
    assert set(violations_of(model, only_ends)) == {field}
    letter = parse(model, generation(bad_words=["a"])).rules.bad_sequences[0][0]
    only_bad = generation(allowed_token_ids=[letter], bad_words=["a"])
    assert set(violations_of(model, only_bad)) == {field}


def test_bad_words_are_sequences_with_and_without_a_space(model: ServedModel) -> None:
    encode = model.tokenizer.encode
    rules = parse(model, generation(bad_words=["ab", " ab", "c"])).rules
    expected = [encode(text, add_special_tokens=False) for text in ("ab", " ab", "c", " c")]
    assert [list(one) for one in rules.bad_sequences] == expected
    field = "generation.sampling.bad_words"
    assert set(violations_of(model, generation(bad_words=["a", ""]))) == {f"{field}[1]"}
    assert set(violations_of(model, generation(bad_words=["a" * 1025]))) == {f"{field}[0]"}
    assert set(violations_of(model, generation(bad_words=["a"] * 257))) == {field}
    long = parse(model, generation(bad_words=[f"{index:03}" + "x" * 900 for index in range(256)]))
    assert len(long.rules.bad_sequences) == 512


def test_log_probabilities_are_counted_and_their_ids_checked(model: ServedModel) -> None:
    none = parse(model, generation()).records
    assert (none.num_top, none.token_ids, none.num_prompt_top) == (None, (), None)
    wish = {"top_logprobs": 0, "logprob_token_ids": [5, 2, 5], "prompt_top_logprobs": 20}
    records = parse(model, generation(output=wish)).records
    assert (records.num_top, records.token_ids, records.num_prompt_top) == (0, (5, 2, 5), 20)
    bad = {"top_logprobs": 21, "logprob_token_ids": [-1], "prompt_top_logprobs": -1}
    assert set(violations_of(model, generation(output=bad))) == {
        "generation.output.top_logprobs",
        "generation.output.logprob_token_ids[0]",
        "generation.output.prompt_top_logprobs",
    }
    field = "generation.output.logprob_token_ids"
    alone = violations_of(model, generation(output={"logprob_token_ids": [1]}))
    assert alone == {field: "needs top_logprobs"}
    many = {"top_logprobs": 1, "logprob_token_ids": [1] * 129}
    assert set(violations_of(model, generation(output=many))) == {field}


async def test_the_core_is_told_all_of_it(model: ServedModel) -> None:
    wish = {"top_logprobs": 3, "logprob_token_ids": [5, 2], "prompt_top_logprobs": 1}
    message = generation(
        output=wish,
        repetition_penalty=1.5,
        frequency_penalty=-1,
        presence_penalty=2,
        logit_bias={4: 1.5},
        allowed_token_ids=[8, 1],
        bad_words=["ab"],
    )
    parsed = await asyncio.to_thread(parse, model, message)
    submit = new_record(parsed, caller=Caller(tenant="t"), now=0.0, deadline_at=None).submit
    sampling = submit.sampling
    penalties = (
        sampling.repetition_penalty,
        sampling.frequency_penalty,
        sampling.presence_penalty,
    )
    assert penalties == (1.5, -1.0, 2.0)
    assert ints(sampling.logit_bias_ids) == [4]
    assert struct.unpack("<f", sampling.logit_bias_values) == (1.5,)
    assert ints(sampling.allowed_token_ids) == [1, 8]
    assert ints(sampling.bad_sequence_lengths) == [2, 3]
    assert len(ints(sampling.bad_sequence_tokens)) == 5
    assert (sampling.has_logprobs, sampling.num_top_logprobs) == (True, 3)
    assert ints(sampling.logprob_token_ids) == [5, 2]
    assert (submit.prompt_records_from, submit.num_prompt_top_logprobs) == (1, 1)
