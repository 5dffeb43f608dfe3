"""Structured output as users of the SDK write it."""

import json
from typing import Any

import pytest

from octavo import InvalidRequest, StructuredOutput
from octavo.requests import generation_message
from octavo.structured import structured_message
from octavo.v1 import inference_pb2 as api

SCHEMA = {"type": "object", "properties": {"größe": {"type": "integer"}}}


class Person:
    """Stands for a pydantic model."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return SCHEMA


@pytest.mark.parametrize(
    "value",
    [
        SCHEMA,
        Person,
        StructuredOutput(json_schema=SCHEMA),
        StructuredOutput(json_schema=Person),
        StructuredOutput(json_schema=json.dumps(SCHEMA, ensure_ascii=False)),
    ],
)
def test_a_schema_may_be_a_dict_a_text_or_a_class(value: Any) -> None:
    message = structured_message(value)
    assert message.WhichOneof("kind") == "json_schema"
    assert json.loads(message.json_schema) == SCHEMA
    assert not message.HasField("after_reasoning")


@pytest.mark.parametrize(
    ("kind", "value"),
    [("regex", "a+"), ("lark", "start: /a/"), ("gbnf", "root ::= [a]"), ("json_object", True)],
)
def test_other_kinds_are_sent_as_they_are(kind: str, value: Any) -> None:
    wanted = StructuredOutput(**{kind: value}, after_reasoning=True)
    expected = api.StructuredOutput(**{kind: value}, after_reasoning=True)
    assert structured_message(wanted) == expected


def test_a_choice_is_a_list_and_no_schema_is_false() -> None:
    assert structured_message(StructuredOutput(choice=["yes", "no"])).choice.texts == ["yes", "no"]
    assert structured_message(StructuredOutput(choice=[])).HasField("choice")
    assert structured_message(StructuredOutput(json_schema=False)).json_schema == "false"


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (StructuredOutput(), "exactly one of json_schema, json_object"),
        (StructuredOutput(regex="a", lark="b"), "got regex, lark"),
        (StructuredOutput(regex=7), "structured_output.regex"),  # type: ignore[arg-type]
        (StructuredOutput(json_schema={"minimum": float("nan")}), "structured_output.json_schema"),
        (int, "no model_json_schema"),
        (7, "must be a dict, a text or a class"),
    ],
)
def test_what_cannot_be_sent_is_refused_here(value: Any, rule: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        structured_message(value)
    assert rule in str(refused.value)


def test_a_call_takes_it_as_an_option() -> None:
    prompt = api.Prompt(text="hi")
    options: Any = {"structured_output": SCHEMA}
    message = generation_message(prompt, params=None, options=options)
    assert json.loads(message.structured_output.json_schema) == SCHEMA
    options = {"structured_output": None}
    assert not generation_message(prompt, params=None, options=options).HasField(
        "structured_output"
    )
