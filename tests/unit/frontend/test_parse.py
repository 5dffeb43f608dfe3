"""Every field of a generation has one meaning, or a violation that names field, value and rule."""

from __future__ import annotations

import math
from typing import Any

import pytest
from google.protobuf import struct_pb2

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.blob import BlobInvalid, read_blob, text_rules
from scheduler_svc.frontend.errors import ModelUnknown
from scheduler_svc.frontend.model import ServedModel
from scheduler_svc.frontend.parse_stopping import MAX_STOP_BYTES_TOGETHER
from tests.fakes.byte_tokenizer import END_ID
from tests.unit.frontend.parsing import parse, violations_of

NAN, INF = math.nan, math.inf


def with_sampling(**fields: Any) -> api.Generation:
    return api.Generation(prompt=api.Prompt(text="hi"), sampling=api.SamplingParams(**fields))


def with_stopping(**fields: Any) -> api.Generation:
    return api.Generation(prompt=api.Prompt(text="hi"), stopping=api.StoppingParams(**fields))


def with_scheduling(**fields: Any) -> api.Generation:
    return api.Generation(prompt=api.Prompt(text="hi"), scheduling=api.SchedulingParams(**fields))


def with_chat(*messages: api.ChatMessage, **fields: Any) -> api.Generation:
    return api.Generation(prompt=api.Prompt(chat=api.Chat(messages=messages, **fields)))


@pytest.mark.parametrize(
    ("fields", "attribute", "value"),
    [
        ({}, "temperature", 1.0),
        ({"temperature": 0}, "temperature", 0.0),
        ({"temperature": 1e-30}, "temperature", 0.0),
        ({"temperature": 1e-6}, "temperature", 0.0),
        ({"temperature": 2e-5}, "temperature", pytest.approx(2e-5)),
        ({"temperature": 100}, "temperature", 100.0),
        ({}, "top_k", 0),
        ({"top_k": 0}, "top_k", 0),
        ({"top_k": -1}, "top_k", 0),
        ({"top_k": 1}, "top_k", 1),
        ({"top_k": 287}, "top_k", 287),
        ({"top_k": 288}, "top_k", 0),
        ({"top_k": 2**31 - 1}, "top_k", 0),
        ({}, "top_p", 1.0),
        ({"top_p": 0}, "top_p", 0.0),
        ({"top_p": 1}, "top_p", 1.0),
        ({}, "min_p", 0.0),
        ({"min_p": 1}, "min_p", 1.0),
        ({"seed": 0}, "seed", 0),
        ({"seed": 2**64 - 1}, "seed", 2**64 - 1),
    ],
)
def test_sampling_values_have_one_meaning(
    model: ServedModel, fields: dict[str, Any], attribute: str, value: object
) -> None:
    assert getattr(parse(model, with_sampling(**fields)).sampling, attribute) == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", NAN),
        ("temperature", INF),
        ("temperature", -INF),
        ("temperature", -1),
        ("temperature", -1e-30),
        ("temperature", 100.1),
        ("top_k", -2),
        ("top_k", -(2**31)),
        ("top_p", NAN),
        ("top_p", -0.1),
        ("top_p", 1.01),
        ("top_p", INF),
        ("min_p", NAN),
        ("min_p", -0.1),
        ("min_p", 1.01),
        ("n", 0),
        ("n", -1),
        ("n", 17),
        ("n", 2**31 - 1),
    ],
)
def test_sampling_values_out_of_range_are_named(
    model: ServedModel, field: str, value: float
) -> None:
    found = violations_of(model, with_sampling(**{field: value}))
    assert list(found) == [f"generation.sampling.{field}"]
    assert "must be" in found[f"generation.sampling.{field}"]
    assert "got" in found[f"generation.sampling.{field}"]


@pytest.mark.parametrize(
    ("fields", "attribute", "value"),
    [
        ({}, "max_tokens", 0),
        ({"max_tokens": 1}, "max_tokens", 1),
        ({"max_tokens": 2**31 - 1}, "max_tokens", 2**31 - 1),
        ({}, "min_tokens", 0),
        ({"min_tokens": 7}, "min_tokens", 7),
        ({"min_tokens": 7, "max_tokens": 7}, "min_tokens", 7),
        ({"stop_token_ids": [0, 287, 0]}, "stop_token_ids", (0, 287)),
        ({}, "time_limit_ms", 0),
        ({"time_limit_s": 1e-30}, "time_limit_ms", 1),
        ({"time_limit_s": 1.5}, "time_limit_ms", 1500),
        ({"time_limit_s": 3e38}, "time_limit_ms", 2**53),
        ({}, "eos_token_ids", (END_ID,)),
        ({"ignore_eos": True}, "eos_token_ids", ()),
    ],
)
def test_stopping_values_have_one_meaning(
    model: ServedModel, fields: dict[str, Any], attribute: str, value: object
) -> None:
    assert getattr(parse(model, with_stopping(**fields)), attribute) == value


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 8, "max_tokens": 7}, "min_tokens"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": ["a", "x" * 4097]}, "stop[1]"),
        ({"stop": ["é" * 2049]}, "stop[0]"),
        ({"stop": ["a"] * 1025}, "stop"),
        ({"stop": ["x" * 4096] * (MAX_STOP_BYTES_TOGETHER // 4096 + 1)}, "stop"),
        ({"stop_token_ids": [5, -1]}, "stop_token_ids[1]"),
        ({"stop_token_ids": [288]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [2**31 - 1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
        ({"time_limit_s": 0}, "time_limit_s"),
        ({"time_limit_s": -1}, "time_limit_s"),
        ({"time_limit_s": NAN}, "time_limit_s"),
        ({"time_limit_s": INF}, "time_limit_s"),
    ],
)
def test_stopping_values_out_of_range_are_named(
    model: ServedModel, fields: dict[str, Any], path: str
) -> None:
    assert list(violations_of(model, with_stopping(**fields))) == [f"generation.stopping.{path}"]


def test_the_largest_stop_strings_are_served(model: ServedModel) -> None:
    stops = ["\n\n", " any", "。", "x" * 4096] + [f"stop {index}" for index in range(1020)]
    parsed = parse(model, with_stopping(stop=stops, include_stop=True))
    assert parsed.text_rules.stop_strings == tuple(stops)
    assert parsed.text_rules.include_stop


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"priority": 9}, "priority"),
        ({"priority": -9}, "priority"),
        ({"keep_for_s": -1}, "keep_for_s"),
        ({"keep_for_s": 1e9}, "keep_for_s"),
        ({"keep_for_s": NAN}, "keep_for_s"),
        ({"keep_for_s": INF}, "keep_for_s"),
    ],
)
def test_scheduling_values_out_of_range_are_named(
    model: ServedModel, fields: dict[str, Any], path: str
) -> None:
    found = violations_of(model, with_scheduling(**fields))
    assert list(found) == [f"generation.scheduling.{path}"]


def test_a_keep_above_the_limit_is_shortened_and_said(model: ServedModel) -> None:
    parsed = parse(model, with_scheduling(keep_for_s=600.5))
    assert parsed.keep_for_ms == 600_000
    assert ["keep_for_s" in warning for warning in parsed.warnings] == [True]


def test_scheduling_values_are_taken_over(model: ServedModel) -> None:
    parsed = parse(
        model,
        with_scheduling(
            priority=-8, keep_for_s=0.0001, skip_cache_read=True, skip_cache_store=True
        ),
    )
    assert (parsed.priority, parsed.keep_for_ms) == (-8, 1)
    assert (parsed.skip_cache_read, parsed.skip_cache_store) == (True, True)


@pytest.mark.parametrize(
    ("interval", "is_valid"), [(0, False), (1, True), (1024, True), (1025, False)]
)
def test_the_stream_interval_has_a_range(
    model: ServedModel,
    interval: int,
    is_valid: bool,  # noqa: FBT001 - a table's column
) -> None:
    generation = api.Generation(
        prompt=api.Prompt(text="hi"), output=api.OutputParams(stream_interval=interval)
    )
    assert (violations_of(model, generation) == {}) == is_valid


@pytest.mark.parametrize(
    ("prompt", "path"),
    [
        (api.Prompt(), "generation.prompt"),
        (api.Prompt(text=""), "generation.prompt.text"),
        (api.Prompt(token_ids=api.TokenIds()), "generation.prompt.token_ids.ids"),
        (api.Prompt(token_ids=api.TokenIds(ids=[1, -1])), "generation.prompt.token_ids.ids[1]"),
        (api.Prompt(token_ids=api.TokenIds(ids=[288])), "generation.prompt.token_ids.ids[0]"),
        (api.Prompt(token_ids=api.TokenIds(ids=[1] * 200)), "generation.prompt"),
        (api.Prompt(token_ids=api.TokenIds(ids=[1] * 201)), "generation.prompt.token_ids.ids"),
        (api.Prompt(text="x" * 200), "generation.prompt"),
        (api.Prompt(chat=api.Chat()), "generation.prompt.chat.messages"),
        (
            api.Prompt(chat=api.Chat(messages=[api.ChatMessage(content="x")])),
            "generation.prompt.chat.messages[0].role",
        ),
    ],
)
def test_prompts_that_cannot_be_served_are_named(
    model: ServedModel, prompt: api.Prompt, path: str
) -> None:
    assert list(violations_of(model, api.Generation(prompt=prompt))) == [path]


def test_a_missing_generation_or_prompt_is_named(model: ServedModel) -> None:
    assert violations_of(model, None) == {"generation": "is required"}
    assert list(violations_of(model, api.Generation())) == ["generation.prompt"]


@pytest.mark.parametrize(
    "prompt",
    [
        api.Prompt(text=" "),
        api.Prompt(text="<|im_end|>"),
        api.Prompt(text="x" * 199),
        api.Prompt(token_ids=api.TokenIds(ids=[287] * 199)),
        api.Prompt(chat=api.Chat(messages=[api.ChatMessage(role="user")])),
    ],
)
def test_prompts_at_the_edge_are_served(model: ServedModel, prompt: api.Prompt) -> None:
    assert len(parse(model, api.Generation(prompt=prompt)).prompt_token_ids) >= 1


def test_a_prompt_over_the_limit_names_its_tokens_and_the_limit(model: ServedModel) -> None:
    [rule] = violations_of(model, api.Generation(prompt=api.Prompt(text="x" * 350))).values()
    assert "has 350 tokens" in rule
    assert "at most 200 tokens" in rule


def test_generation_prompt_and_continued_message_exclude_each_other(model: ServedModel) -> None:
    message = api.ChatMessage(role="user", content="x")
    both = with_chat(message, add_generation_prompt=True, continue_final_message=True)
    assert list(violations_of(model, both)) == ["generation.prompt.chat.continue_final_message"]
    parse(model, with_chat(message, continue_final_message=True))
    neither = parse(model, with_chat(message, add_generation_prompt=False))
    default = parse(model, with_chat(message))
    assert len(neither.prompt_token_ids) < len(default.prompt_token_ids)


def test_template_variables_that_are_not_json_or_are_ours_are_named(model: ServedModel) -> None:
    message = api.ChatMessage(role="user", content="x")
    for name, value, path in (
        ("temperature", NAN, "template_kwargs"),
        ("messages", 1.0, "template_kwargs.messages"),
    ):
        kwargs = struct_pb2.Struct()
        kwargs.fields[name].number_value = value
        found = violations_of(model, with_chat(message, template_kwargs=kwargs))
        assert list(found) == [f"generation.prompt.chat.{path}"]


@pytest.mark.parametrize("request_id", ["a", "A.b_c:d-9", "x" * 128])
def test_request_ids_are_taken_as_they_are(model: ServedModel, request_id: str) -> None:
    generation = api.Generation(request_id=request_id, prompt=api.Prompt(text="hi"))
    assert parse(model, generation).request_id == request_id


@pytest.mark.parametrize("request_id", [" ", "a b", "x" * 129, "a\n", "é", "a/b", "a\x00"])
def test_request_ids_with_other_characters_are_named(model: ServedModel, request_id: str) -> None:
    generation = api.Generation(request_id=request_id, prompt=api.Prompt(text="hi"))
    assert list(violations_of(model, generation)) == ["generation.request_id"]


def test_missing_ids_are_made_and_differ(model: ServedModel) -> None:
    made = {parse(model, with_sampling()).request_id for _ in range(3)}
    assert len(made) == 3
    assert {len(one) for one in made} == {32}


def test_another_model_is_unknown_before_anything_else(model: ServedModel) -> None:
    with pytest.raises(ModelUnknown, match="'other' is not served"):
        parse(model, api.Generation(model="other"))
    named = api.Generation(model="tiny", prompt=api.Prompt(text="hi"))
    assert parse(model, named).num_outputs == 1


def test_every_violation_is_collected(model: ServedModel) -> None:
    generation = api.Generation(
        request_id="?",
        prompt=api.Prompt(text="x" * 300),
        sampling=api.SamplingParams(temperature=NAN, top_p=2, n=0),
        stopping=api.StoppingParams(max_tokens=0, stop=[""], stop_token_ids=[-5]),
        output=api.OutputParams(stream_interval=0),
        scheduling=api.SchedulingParams(priority=99, keep_for_s=-1),
    )
    found = violations_of(model, generation, resume=api.Resume(age_ms=-1))
    assert len(found) == 13


@pytest.mark.parametrize(
    ("resume", "path"),
    [
        (api.Resume(), "resume.outputs"),
        (api.Resume(outputs=[api.ResumedOutput()] * 2), "resume.outputs"),
        (api.Resume(outputs=[api.ResumedOutput(token_ids=[1])]), "resume.seed"),
        (
            api.Resume(outputs=[api.ResumedOutput(token_ids=[288])], seed=1),
            "resume.outputs[0].token_ids[0]",
        ),
        (
            api.Resume(outputs=[api.ResumedOutput(token_ids=[1] * 199)], seed=1),
            "resume.outputs[0].token_ids",
        ),
        (
            api.Resume(outputs=[api.ResumedOutput(finish=api.Finish())]),
            "resume.outputs[0].finish.reason",
        ),
        (api.Resume(outputs=[api.ResumedOutput()], age_ms=-1), "resume.age_ms"),
    ],
)
def test_resumes_that_break_rules_are_named(
    model: ServedModel, resume: api.Resume, path: str
) -> None:
    assert list(violations_of(model, with_sampling(), resume=resume)) == [path]


def test_a_resumed_seed_must_be_the_requests(model: ServedModel) -> None:
    resume = api.Resume(outputs=[api.ResumedOutput(token_ids=[1])], seed=1)
    assert parse(model, with_sampling(), resume=resume).sampling.seed == 1
    assert parse(model, with_sampling(seed=1), resume=resume).sampling.seed == 1
    found = violations_of(model, with_sampling(seed=2), resume=resume)
    assert list(found) == ["resume.seed"]


def test_resume_is_no_part_of_the_digest_and_every_field_is(model: ServedModel) -> None:
    plain = parse(model, with_sampling(seed=1))
    resume = api.Resume(outputs=[api.ResumedOutput(token_ids=[1])], seed=1)
    assert parse(model, with_sampling(seed=1), resume=resume).body_digest == plain.body_digest
    others = (
        with_sampling(),
        with_sampling(seed=2),
        with_sampling(seed=1, top_p=1),
        with_sampling(seed=1, n=1),
    )
    digests = {plain.body_digest, *(parse(model, other).body_digest for other in others)}
    assert len(digests) == 5


def test_a_blob_rebuilds_the_texts_rules(model: ServedModel) -> None:
    generation = api.Generation(
        prompt=api.Prompt(text="a long prompt " * 5),
        stopping=api.StoppingParams(
            stop=["a", "b"], include_stop=True, min_tokens=3, stop_token_ids=[7]
        ),
        output=api.OutputParams(skip_special_tokens=False, stream_interval=9),
    )
    parsed = parse(model, generation)
    facts = read_blob(parsed.blob)
    ends = frozenset((*parsed.eos_token_ids, *parsed.stop_token_ids))
    rules = text_rules(facts.generation, end_token_ids=ends, starts_in_reasoning=False)
    assert rules == parsed.text_rules
    assert b"long prompt" not in parsed.blob


@pytest.mark.parametrize(
    "blob", [b"", b"\x02", b"\x01\0\0\0\0\0", b"\x02\0\x04\0\0\0\xff\xff\xff\xff"]
)
def test_a_blob_of_another_making_is_refused(blob: bytes) -> None:
    with pytest.raises(BlobInvalid):
        read_blob(blob)


def test_the_largest_valid_request_fits_its_blob(model: ServedModel) -> None:
    stops = ["x" * 4096] * (MAX_STOP_BYTES_TOGETHER // 4096)
    parsed = parse(model, with_stopping(stop=stops, stop_token_ids=list(range(288))))
    assert len(parsed.blob) < 2**20
