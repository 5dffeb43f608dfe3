"""Every scalar field of a generation, at its extremes: each value has one defined result.

The tables below say which values are accepted; every other one is refused, by the field's own path
and no other. A field of the contract that is in no table fails the test: new ones cannot be
forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.errors import InvalidRequest, ModelUnknown
from scheduler_svc.frontend.model import ServedModel
from tests.unit.frontend.parsing import LIMITS, parse

MIN32, MAX32 = -(2**31), 2**31 - 1
MAX64, MAX_FLOAT = 2**63 - 1, 3.4028234663852886e38
TRIED: dict[int, Sequence[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: (MIN32, -1, 0, 1, MAX32),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), -1, 0, 1, MAX64),
    FieldDescriptor.CPPTYPE_UINT64: (0, 1, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (MIN32, -1, 0, 1, 2, 3, 7, 99, MAX32),
    FieldDescriptor.CPPTYPE_FLOAT: (
        *(math.nan, math.inf, -math.inf, -MAX_FLOAT, -1.0, -1e-30),
        *(-0.0, 0.0, 1e-30, 1.0, MAX_FLOAT),
    ),
    FieldDescriptor.CPPTYPE_BOOL: (False, True),
    FieldDescriptor.CPPTYPE_STRING: ("", " ", "a", "\0", "é" * 40_000),
}
ANY: Sequence[Any] = ()
SHARES = (0.0, 1e-30, 1.0)
SMALL = (-1.0, -1e-30, 0.0, 1e-30, 1.0)
TEXTS = ("", " ", "a", "\0")
IDS = (0, 1)
ACCEPTED: dict[str, Sequence[Any]] = {
    "request_id": ("", "a"),
    "model": ("",),
    "prompt.text": (" ", "a", "\0"),
    "prompt.token_ids.ids": IDS,
    "prompt.chat.messages.role": (" ", "a", "\0"),
    "prompt.chat.messages.content": TEXTS,
    "prompt.chat.messages.tool_calls.id": TEXTS,
    "prompt.chat.messages.tool_calls.name": (" ", "a", "\0"),
    "prompt.chat.messages.tool_calls.arguments_json": ("",),
    "prompt.chat.messages.tool_call_id": TEXTS,
    "prompt.chat.messages.name": TEXTS,
    "prompt.chat.messages.reasoning": TEXTS,
    "prompt.chat.add_generation_prompt": ANY,
    "prompt.chat.continue_final_message": ANY,
    "prompt.chat.tools.name": ("a",),
    "prompt.chat.tools.description": TEXTS,
    "prompt.chat.tools.parameters_json": ("",),
    "prompt.chat.documents.title": TEXTS,
    "prompt.chat.documents.text": TEXTS,
    "prompt.truncation.max_tokens": (1,),
    "prompt.truncation.side": (0, 1, 2),
    "sampling.temperature": SHARES,
    "sampling.top_k": (-1, 0, 1, MAX32),
    "sampling.top_p": SHARES,
    "sampling.min_p": SHARES,
    "sampling.seed": ANY,
    "sampling.n": (1,),
    "sampling.repetition_penalty": (1.0,),
    "sampling.frequency_penalty": SMALL,
    "sampling.presence_penalty": SMALL,
    "sampling.logit_bias.key": IDS,
    "sampling.logit_bias.value": SMALL,
    "sampling.allowed_token_ids": IDS,
    "sampling.bad_words": (" ", "a", "\0"),
    "stopping.max_tokens": (1, MAX32),
    "stopping.min_tokens": (0, 1, MAX32),
    "stopping.stop": (" ", "a", "\0"),
    "stopping.stop_token_ids": IDS,
    "stopping.include_stop": ANY,
    "stopping.ignore_eos": ANY,
    "stopping.time_limit_s": (1e-30, 1.0, MAX_FLOAT),
    "output.skip_special_tokens": ANY,
    "output.stream_interval": (1,),
    "output.top_logprobs": (0, 1),
    "output.logprob_token_ids": IDS,
    "output.prompt_top_logprobs": (0, 1),
    "output.echo": ANY,
    "output.split_reasoning": ANY,
    "output.parse_tool_calls": ANY,
    "scheduling.priority": (-1, 0, 1),
    "scheduling.keep_for_s": SHARES,
    "scheduling.skip_cache_read": ANY,
    "scheduling.skip_cache_store": ANY,
}
ACCEPTED_OF_RESUME: dict[str, Sequence[Any]] = {
    "outputs.token_ids": IDS,
    "outputs.finish.reason": (1, 2, 3, 7),
    "outputs.finish.stop_string": (*TEXTS, "é" * 40_000),
    "outputs.finish.stop_token_id": ANY,
    "outputs.finish.message": (*TEXTS, "é" * 40_000),
    "outputs.finish.num_tokens": ANY,
    "seed": ANY,
    "age_ms": (0, 1, MAX64),
}
# What the text of a form may be is the business of whoever compiles it: test_structured_output.
FORMS = "structured_output."
# Paths of violations that are not the field's own: what was sent makes another field the wrong one.
RULED_BY = {
    "sampling.logit_bias.key": "sampling.logit_bias",
    "sampling.logit_bias.value": "sampling.logit_bias",
}


def scalars(descriptor: Descriptor, prefix: str = "") -> Iterator[tuple[str, FieldDescriptor]]:
    """The paths of all scalar fields of our own messages."""
    for field in descriptor.fields:
        path = f"{prefix}{field.name}"
        if field.message_type is None:
            yield path, field
        elif field.message_type.file.package == "octavo.v1":
            yield from scalars(field.message_type, f"{path}.")


GENERATION = dict(scalars(api.Generation.DESCRIPTOR))
RESUME = dict(scalars(api.Resume.DESCRIPTOR))


def valid(path: str) -> api.Generation:
    """A valid request in which the field may be set."""
    made = api.Generation(prompt=api.Prompt(text="hi"))
    if path.startswith("prompt.chat"):
        made.prompt.chat.CopyFrom(
            api.Chat(
                messages=[
                    api.ChatMessage(role="user", tool_calls=[api.ToolCall(name="f")]),
                ],
                tools=[api.Tool(name="f")],
                documents=[api.Document()],
            )
        )
    if path == "output.logprob_token_ids":
        made.output.top_logprobs = 1
    return made


def assign(message: Message, path: str, value: Any) -> None:
    """Sets a field; in a list, of its only entry."""
    name, _, rest = path.partition(".")
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, shift = (value, 0.0) if rest == "key" else (5, value)
        getattr(message, name)[key] = shift
    elif rest:
        inner = getattr(message, name)
        if field.is_repeated:
            inner = inner[0] if inner else inner.add()
        else:
            inner.SetInParent()
        assign(inner, rest, value)
    elif field.is_repeated:
        getattr(message, name).append(value)
    else:
        setattr(message, name, value)


def outcome(
    model: ServedModel, generation: api.Generation, resume: api.Resume | None = None
) -> set[str]:
    """The fields that are refused; empty when the request is valid."""
    try:
        parse(model, generation, resume=resume)
    except InvalidRequest as error:
        return {one.field.replace("[0]", "").partition("[")[0] for one in error.violations}
    except ModelUnknown:
        return {"generation.model"}
    return set()


def is_among(value: Any, values: Sequence[Any]) -> bool:
    return any(value == one or value is one for one in values)


def test_every_field_of_the_contract_is_in_the_tables() -> None:
    forms = {path for path in GENERATION if path.startswith(FORMS)}
    assert set(ACCEPTED) == set(GENERATION) - forms
    assert set(ACCEPTED_OF_RESUME) == set(RESUME)


@pytest.mark.parametrize("path", ACCEPTED)
def test_each_extreme_of_a_field_has_its_result(model: ServedModel, path: str) -> None:
    assert outcome(model, valid(path)) == set()  # unset
    for value in TRIED[GENERATION[path].cpp_type]:
        generation = valid(path)
        assign(generation, path, value)
        refused = outcome(model, generation)
        if not ACCEPTED[path] or is_among(value, ACCEPTED[path]):
            assert refused == set(), (path, value)
        elif path.startswith("prompt.") and value == TRIED[FieldDescriptor.CPPTYPE_STRING][-1]:
            assert refused <= {"generation.prompt", f"generation.{path}"}, (path, value)
            assert refused
        else:
            assert refused == {f"generation.{RULED_BY.get(path, path)}"}, (path, value)


@pytest.mark.parametrize("path", ACCEPTED_OF_RESUME)
def test_each_extreme_of_a_resumed_field_has_its_result(model: ServedModel, path: str) -> None:
    for value in TRIED[RESUME[path].cpp_type]:
        resume = api.Resume(outputs=[api.ResumedOutput()], seed=1)
        if path.startswith("outputs.finish"):
            resume.outputs[0].finish.reason = api.FINISH_REASON_EOS
        assign(resume, path, value)
        refused = outcome(model, valid(""), resume)
        accepted = ACCEPTED_OF_RESUME[path]
        expected = set() if not accepted or is_among(value, accepted) else {f"resume.{path}"}
        assert refused == expected, (path, value)


def test_all_that_is_wrong_is_said_at_once(model: ServedModel) -> None:
    generation, expected = api.Generation(), set()
    for path, field in GENERATION.items():
        if path.split(".")[0] not in ("sampling", "stopping", "output", "scheduling"):
            continue
        bad = [v for v in TRIED[field.cpp_type] if ACCEPTED[path] and v not in ACCEPTED[path]]
        if bad:
            assign(generation, path, bad[0])
            expected.add(f"generation.{RULED_BY.get(path, path)}")
    assert outcome(model, generation) == {*expected, "generation.prompt"}
    assert len(expected) > 20


def test_a_tiny_temperature_is_greedy_and_a_minus_zero_is_zero(model: ServedModel) -> None:
    # SMP-02
    generation = valid("")
    for value in (1e-30, -0.0, 0.0):
        generation.sampling.temperature = value
        assert parse(model, generation).sampling.temperature == 0
    generation.sampling.top_k = MAX32
    assert parse(model, generation).sampling.top_k == 0
    generation.stopping.time_limit_s = 1e-30
    assert parse(model, generation).time_limit_ms == 1
    assert LIMITS.vocab_size < MAX32
