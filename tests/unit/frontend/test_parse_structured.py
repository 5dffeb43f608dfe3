"""Structured output: what may be asked for, and what the core is asked to compile."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.errors import InvalidRequest
from scheduler_svc.frontend.model import ServedModel
from scheduler_svc.frontend.parse_structured import choice_grammar
from scheduler_svc.frontend.refusals import refusal
from tests.fakes.byte_tokenizer import END_ID, byte_tokenizer
from tests.unit.frontend.parsing import LIMITS, parse, violations_of

FIELD = "generation.structured_output"


def wanting(
    prompt: str = "hi", *, stopping: api.StoppingParams | None = None, **fields: Any
) -> api.Generation:
    return api.Generation(
        prompt=api.Prompt(text=prompt),
        structured_output=api.StructuredOutput(**fields),
        stopping=stopping,
    )


def grammar_of(model: ServedModel, generation: api.Generation) -> engine.Grammar:
    form = parse(model, generation).form
    assert form is not None
    return form.grammar


def matches(grammar: engine.Grammar, text: str) -> bool:
    """Whether a text is whole under a Lark grammar."""
    tokenizer = LLTokenizer(byte_tokenizer().to_str(), eos_token=END_ID)
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar.source), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher.consume_tokens(tokenizer.tokenize_str(text)) and matcher.is_accepting()


def test_nothing_is_asked_for_by_default(model: ServedModel) -> None:
    assert parse(model, api.Generation(prompt=api.Prompt(text="hi"))).form is None


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"json_schema": '{"type": "integer"}'}, "JSON_SCHEMA", '{"type": "integer"}'),
        ({"json_schema": " true"}, "JSON_SCHEMA", " true"),
        ({"json_object": True}, "JSON_SCHEMA", '{"type": "object"}'),
        ({"regex": "[ab]+"}, "REGEX", "[ab]+"),
        ({"lark": 'start: "a"'}, "LARK", 'start: "a"'),
    ],
)
def test_what_the_core_gets(
    model: ServedModel, fields: dict[str, Any], kind: str, source: str
) -> None:
    grammar = grammar_of(model, wanting(**fields))
    assert grammar.kind == engine.GrammarKind.Value(f"GRAMMAR_KIND_{kind}")
    assert grammar.source == source
    assert not grammar.HasField("begins_after_token_id")


def test_gbnf_becomes_lark(model: ServedModel) -> None:
    grammar = grammar_of(model, wanting(gbnf='root ::= "a" digit+\ndigit ::= [0-9]\n'))
    assert grammar.kind == engine.GRAMMAR_KIND_LARK
    assert matches(grammar, "a17")
    assert not matches(grammar, "a")


def test_each_choice_matches_and_nothing_else_does(model: ServedModel) -> None:
    texts = ["a", "ab", 'say "hi"\n', "\\d+", "né😀", "\x01\t/", "[x]|y", "", "a"]
    grammar = grammar_of(model, wanting(choice=api.Choice(texts=texts)))
    assert all(matches(grammar, text) for text in texts)
    assert not any(matches(grammar, text) for text in ("b", "aba", "7", "n", "[x]", "y"))
    assert grammar.source == choice_grammar(texts)


@pytest.mark.parametrize(
    ("fields", "field", "rule"),
    [
        ({}, "", "exactly one of"),
        ({"json_object": False}, ".json_object", "must be true"),
        ({"json_schema": ""}, ".json_schema", "must be JSON"),
        ({"json_schema": "{"}, ".json_schema", "must be JSON"),
        ({"json_schema": '{"minimum": NaN}'}, ".json_schema", "NaN is no JSON"),
        ({"json_schema": "[" * 30_000}, ".json_schema", "must be JSON"),
        ({"json_schema": "[]"}, ".json_schema", "must be a JSON object or boolean"),
        ({"json_schema": json.dumps({"a": "x" * 2**16})}, ".json_schema", "at most 65536 bytes"),
        ({"regex": "a" * (2**14 + 1)}, ".regex", "at most 16384 bytes, has 16385"),
        ({"lark": "é" * 2**15 + "x"}, ".lark", "at most 65536 bytes, has 65537"),
        ({"gbnf": "nothing"}, ".gbnf", "must be GBNF: Expected ::="),
        ({"gbnf": "root ::= " + "(" * 3000}, ".gbnf", "must be GBNF"),
        ({"gbnf": 'r ::= "a"\n' * 501}, ".gbnf", "at most 500 rules, has 501"),
        ({"choice": api.Choice()}, ".choice.texts", "1 to 1024 texts, has 0"),
        ({"choice": api.Choice(texts=["a"] * 1025)}, ".choice.texts", "has 1025"),
        ({"choice": api.Choice(texts=["a" * 2**15] * 3)}, ".choice.texts", "has 98304"),
    ],
)
def test_what_is_refused(model: ServedModel, fields: dict[str, Any], field: str, rule: str) -> None:
    violations = violations_of(model, wanting(**fields))
    assert list(violations) == [FIELD + field]
    assert rule in violations[FIELD + field]


def test_an_end_id_is_needed(model: ServedModel) -> None:
    ignoring = api.StoppingParams(ignore_eos=True)
    assert "needs an end id" in violations_of(model, wanting(regex="a", stopping=ignoring))[FIELD]
    stopping = api.StoppingParams(ignore_eos=True, stop_token_ids=[7])
    assert grammar_of(model, wanting(regex="a", stopping=stopping)).source == "a"


def test_a_replica_may_not_serve_it(model: ServedModel) -> None:
    limits = replace(LIMITS, has_structured_output=False)
    with pytest.raises(InvalidRequest) as refused:
        parse(model, wanting(regex="a"), limits=limits)
    assert [each.field for each in refused.value.violations] == [FIELD]


def test_the_end_of_reasoning_must_be_a_token(model: ServedModel) -> None:
    violations = violations_of(model, wanting(regex="a", after_reasoning=True))
    assert list(violations) == [f"{FIELD}.after_reasoning"]
    closed = grammar_of(model, wanting("<think>\n</think>\n\n", regex="a", after_reasoning=True))
    assert not closed.HasField("begins_after_token_id")


def test_the_compilers_refusal_names_the_field() -> None:
    rejected = engine.Rejected(reason=engine.REJECT_REASON_GRAMMAR, message="no text matches it")
    error = refusal(rejected, form_field=f"{FIELD}.regex")
    assert isinstance(error, InvalidRequest)
    assert [(each.field, each.rule) for each in error.violations] == [
        (f"{FIELD}.regex", "no text matches it")
    ]
