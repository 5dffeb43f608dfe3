"""Structured output through the whole service: an end has the form, a cut its beginning."""

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import jsonschema
import pytest
from google.rpc import error_details_pb2, status_pb2
from llguidance import LLMatcher, LLTokenizer

from octavo.models.resolve import DEFAULT_MODEL, resolve_model
from octavo.v1 import inference_pb2 as api
from tests.e2e.calls import Received, connected, generation, stream, stream_all
from tests.e2e.replica import Replica, running_replica
from tests.fakes.checkpoints import TinyModel, make_tiny_checkpoint
from tests.fakes.random_schemas import random_schema

NUM_AT_ONCE = 8
MAX_TOKENS = 200
MODEL = TinyModel(family="llama", vocab_size=49_152, hidden_size=32, intermediate_size=48)
"""Random weights, and the tokenizer of SmolLM2."""


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    folder = Path(resolve_model(DEFAULT_MODEL).path)
    return LLTokenizer((folder / "tokenizer.json").read_text(encoding="utf-8"), eos_token=2)


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_tiny_checkpoint(folder, model=MODEL, with_tokenizer=False)
    named = Path(resolve_model(DEFAULT_MODEL).path)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(named / name, folder / name)
    with running_replica(folder, flags=["--dtype", "float32", "--cpu-threads", "1"]) as started:
        yield started


def wanting(
    wanted: api.StructuredOutput,
    *,
    seed: int = 0,
    n: int | None = None,
    max_tokens: int = MAX_TOKENS,
    stop: Sequence[str] = (),
) -> api.Generation:
    made = generation(
        "An answer:",
        max_tokens=max_tokens,
        temperature=1.0,
        seed=seed,
        n=n,
        ignore_eos=False,
        stop=stop,
    )
    made.structured_output.CopyFrom(wanted)
    return made


def check_schemas(replica: Replica, tokenizer: LLTokenizer, seeds: range) -> list[int]:
    """Holds outputs of random schemas to them; returns how each ended."""
    ends: list[int] = []
    for first in range(seeds.start, seeds.stop, NUM_AT_ONCE):
        some = range(first, min(first + NUM_AT_ONCE, seeds.stop))
        schemas = [random_schema(seed) for seed in some]
        wanted = [
            wanting(api.StructuredOutput(json_schema=schema), seed=seed, n=1 + (seed % 5 == 0))
            for seed, schema in zip(some, schemas, strict=True)
        ]
        for schema, outputs in zip(schemas, stream_all(replica.target, wanted), strict=True):
            ends += [check_output(output, schema, tokenizer) for output in outputs]
    return ends


def check_output(output: Received, schema: str, tokenizer: LLTokenizer) -> int:
    """A whole output satisfies the schema, a cut one is the beginning of one that does."""
    assert output.finish is not None
    reason = output.finish.reason
    if reason == api.FINISH_REASON_EOS:
        jsonschema.validate(json.loads(output.text), json.loads(schema))
    else:
        assert reason == api.FINISH_REASON_LENGTH, (schema, output.finish)
        matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema), log_level=0)
        assert matcher.consume_tokens(output.token_ids), (schema, output.text)
    return reason


def test_random_schemas_are_held_to(replica: Replica, tokenizer: LLTokenizer) -> None:
    ends = check_schemas(replica, tokenizer, range(40))
    assert ends.count(api.FINISH_REASON_EOS) > 20


@pytest.mark.long("schemas")
def test_five_hundred_random_schemas_are_held_to(replica: Replica, tokenizer: LLTokenizer) -> None:
    ends = check_schemas(replica, tokenizer, range(1000, 1500))
    assert ends.count(api.FINISH_REASON_EOS) > 250
    assert ends.count(api.FINISH_REASON_LENGTH) > 5


@pytest.mark.parametrize(
    ("wanted", "form"),
    [
        (api.StructuredOutput(regex=r"[a-f]{3}-\d{2,4}"), r"[a-f]{3}-\d{2,4}"),
        (api.StructuredOutput(lark='start: N "+" N\nN: /[0-9]{1,3}/'), r"[0-9]{1,3}\+[0-9]{1,3}"),
        (api.StructuredOutput(gbnf='root ::= "<" [a-z]{2,4} ">"'), "<[a-z]{2,4}>"),
        (api.StructuredOutput(choice=api.Choice(texts=["yes", "yes!", "né\n"])), "yes!?|né\n"),
    ],
)
def test_every_kind_of_form_and_every_output(
    replica: Replica, wanted: api.StructuredOutput, form: str
) -> None:
    with connected(replica.target) as stub:
        outputs = stream(stub, wanting(wanted, n=4))
        again = stream(stub, wanting(wanted, n=4))
    for output in outputs:
        assert output.finish is not None
        assert output.finish.reason == api.FINISH_REASON_EOS
        assert re.fullmatch(form, output.text), output.text
    assert [output.token_ids for output in again] == [output.token_ids for output in outputs]


def test_stop_strings_and_lengths_cut_a_form(replica: Replica) -> None:
    digits = api.StructuredOutput(regex="([0-9]{3},)+")
    with connected(replica.target) as stub:
        [stopped] = stream(stub, wanting(digits, stop=[","]))
        [cut] = stream(stub, wanting(digits, max_tokens=2))
    assert stopped.finish is not None
    assert stopped.finish.reason == api.FINISH_REASON_STOP_STRING
    assert re.fullmatch("[0-9]{3}", stopped.text)
    assert cut.finish is not None
    assert cut.finish.reason == api.FINISH_REASON_LENGTH
    assert len(cut.token_ids) == 2


def test_constrained_and_free_streams_share_steps(replica: Replica) -> None:
    free = [
        generation("Once", max_tokens=60, temperature=1.0, seed=seed, ignore_eos=True)
        for seed in range(6)
    ]
    formed = [wanting(api.StructuredOutput(regex="[ab]{40}"), seed=seed) for seed in range(2)]
    outputs = stream_all(replica.target, [*free, *formed])
    assert [len(output.token_ids) for [output] in outputs[:6]] == [60] * 6
    assert all(re.fullmatch("[ab]{40}", output.text) for [output] in outputs[6:])


@pytest.mark.parametrize(
    ("wanted", "kind", "rule"),
    [
        (api.StructuredOutput(regex="(["), "regex", "unclosed character class"),
        (api.StructuredOutput(lark="start: nothing"), "lark", "unknown name"),
        (api.StructuredOutput(json_schema="false"), "json_schema", "schema is false"),
        (api.StructuredOutput(json_schema='{"$ref": "#"}'), "json_schema", "no text matches"),
        (api.StructuredOutput(json_object=False), "json_object", "must be true"),
    ],
)
def test_a_refused_grammar_names_its_field_and_the_reason(
    replica: Replica, wanted: api.StructuredOutput, kind: str, rule: str
) -> None:
    with connected(replica.target) as stub, pytest.raises(grpc.RpcError) as refused:
        stream(stub, wanting(wanted))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    [violation] = violations_of(refused.value)
    assert violation.field == f"generation.structured_output.{kind}"
    assert rule in violation.description


def violations_of(error: grpc.RpcError) -> list[error_details_pb2.BadRequest.FieldViolation]:
    """What a refusal says."""
    trailing = {datum.key: datum.value for datum in error.trailing_metadata()}
    status = status_pb2.Status.FromString(trailing["grpc-status-details-bin"])
    bad = error_details_pb2.BadRequest()
    assert any(detail.Unpack(bad) for detail in status.details)
    return list(bad.field_violations)


def test_a_form_that_cannot_go_on_ends_with_the_reason(replica: Replica) -> None:
    early = wanting(api.StructuredOutput(regex="[a]"), n=2)
    early.stopping.min_tokens = 3
    with connected(replica.target) as stub, pytest.raises(grpc.RpcError) as failed:
        stream(stub, early)
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert "min_tokens asks for 3" in (failed.value.details() or "")


def test_the_service_says_what_it_serves_and_counts(replica: Replica) -> None:
    with connected(replica.target) as stub:
        assert stub.GetModelInfo(api.GetModelInfoRequest()).has_structured_output


def test_structured_output_can_be_switched_off(tmp_path: Path) -> None:
    model = make_tiny_checkpoint(tmp_path / "model")
    off = ["--structured-output", "off"]
    with (
        running_replica(model, flags=off, hash_worker=[]) as replica,
        connected(replica.target) as stub,
    ):
        assert not stub.GetModelInfo(api.GetModelInfoRequest()).has_structured_output
        with pytest.raises(grpc.RpcError) as refused:
            stream(stub, wanting(api.StructuredOutput(regex="a")))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    [violation] = violations_of(refused.value)
    assert violation.field == "generation.structured_output"
