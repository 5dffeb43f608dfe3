"""Which grammars are compiled and which are refused, why, and what is remembered of both."""

import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import jsonschema
import psutil
import pytest

from scheduler_svc.core.refusals import BadGrammar, QueueFull
from scheduler_svc.engine.grammar import executor as executor_module
from scheduler_svc.engine.grammar.cache import GrammarCache
from scheduler_svc.engine.grammar.compiler import MAX_SOURCE_BYTES, CompiledGrammar
from scheduler_svc.engine.grammar.executor import Compilation, GrammarExecutor
from scheduler_svc.engine.grammar.state import CannotGoOn
from scheduler_svc.engine.grammar.tasting import Taster
from scheduler_svc.engine.grammar.vocabulary import Vocabulary
from tests.e2e import hostile_schemas
from tests.fakes.byte_tokenizer import byte_tokenizer, write_byte_tokenizer
from tests.fakes.random_schemas import random_schema
from tests.unit.engine.grammar_rig import byte_vocabulary, compiled, message, wander, wanted

NEVER = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}


PART: dict[str, object] = {"anyOf": [{"properties": {f"p{i}": {}, f"q{i}": {}}} for i in range(10)]}
DOUBLING = "\n".join(f'r{i}: r{i + 1} r{i + 1} | "x"' for i in range(1500))
OUTCOMES = {"product of anyOfs": "refused", "intersections": "ended", "doubling": "ended"}
"""Of the others: served."""


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return byte_vocabulary(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize(
    ("kind", "source", "reason"),
    [
        ("REGEX", "([", "unclosed character class"),
        ("REGEX", "(" * 300 + ")" * 300, "invalid regex"),
        ("LARK", "start: nothing", 'unknown name: "nothing"'),
        ("LARK", "start: " + "(" * 9000 + '"a"' + ")" * 9000, "too deeply nested"),
        ("LARK", "start: start", "no text matches it"),
        ("JSON_SCHEMA", "false", "schema is false"),
        ("JSON_SCHEMA", '{"$ref": "#"}', "no text matches it"),
        ("JSON_SCHEMA", json.dumps(NEVER), "no text matches it"),
        ("JSON_SCHEMA", '{"type": "nothing"}', "nothing"),
        ("JSON_SCHEMA", '{"$ref": "https://example.org/s.json"}', "example.org"),
        ("JSON_SCHEMA", '{"items":' * 200 + "{}" + "}" * 200, "recursion limit"),
        ("JSON_SCHEMA", "{", "expected"),
        ("REGEX", "a" * (MAX_SOURCE_BYTES + 1), f"at most {MAX_SOURCE_BYTES}"),
        ("UNSPECIFIED", "a", "is not known"),
    ],
)
def test_a_wrong_grammar_is_refused_with_the_reason(
    vocabulary: Vocabulary, kind: str, source: str, reason: str
) -> None:
    with pytest.raises(BadGrammar) as refused:
        compiled(vocabulary, kind, source)
    text = str(refused.value)
    assert reason in text
    assert len(text) < 700
    assert "\n" not in text


HOSTILE = {
    "nested stars": ("REGEX", "(a|a)*" * 50),
    "backtracking": ("REGEX", "(x+x+)+y"),
    "counted counts": ("REGEX", "((a{0,1000}){0,1000}){0,1000}"),
    "unicode counts": ("REGEX", r"\w{1,500}\p{L}{1,500}"),
    "long count": ("REGEX", "a{16000}"),
    "many states": ("REGEX", "(.*a.{20}|.*b.{21}|.*c.{22})"),
    "huge enum": ("JSON_SCHEMA", json.dumps({"enum": [f"value {i}" for i in range(5000)]})),
    "deep anyOf": ("JSON_SCHEMA", '{"anyOf":[' * 60 + "{}" + "]}" * 60),
    "wide object": ("JSON_SCHEMA", json.dumps({"properties": {f"p{i}": {} for i in range(2500)}})),
    "product of anyOfs": ("JSON_SCHEMA", json.dumps({"allOf": [PART] * 12})),
    "ambiguous": ("LARK", 'start: e\ne: e e | "a" |'),
    "repeated repeats": ("LARK", 'start: ("a"{1,100000}){1,100000}'),
    "intersections": ("LARK", "start: T\nT: /.*a.{13}/ & /.*b.{12}/ & ~/.*c.{11}/"),
    "doubling": ("LARK", f'start: r0\n{DOUBLING}\nr1500: "y"'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_refused_or_served_in_bounded_steps(
    vocabulary: Vocabulary, name: str
) -> None:
    kind, source = HOSTILE[name]
    outcome = "served"
    try:
        wander(wanted(vocabulary, kind, source), Random(1), most=60)
    except BadGrammar:
        outcome = "refused"
    except CannotGoOn:
        outcome = "ended"
    assert outcome == OUTCOMES.get(name, "served")


def test_random_schemas_are_held_to(vocabulary: Vocabulary) -> None:
    tokenizer, draw, num_ended = byte_tokenizer(), Random(5), 0
    for seed in range(60):
        schema = random_schema(seed)
        tokens, is_ended = wander(wanted(vocabulary, "JSON_SCHEMA", schema), draw, most=150)
        num_ended += is_ended
        if is_ended:
            jsonschema.validate(json.loads(tokenizer.decode(tokens)), json.loads(schema))
    assert num_ended > 20


# --- what is remembered ---


def verdicts(*names: str) -> GrammarCache:
    cache = GrammarCache(max_grammars=2, max_bytes=2**30)
    for name in names:
        cache.put((1, name), BadGrammar(name))
    return cache


def test_the_grammar_not_used_for_longest_is_forgotten_first() -> None:
    cache = verdicts("a", "b")
    assert cache.find((1, "a")) is not None
    cache.put((1, "c"), BadGrammar("c"))
    assert [name for name in "abc" if cache.find((1, name))] == ["a", "c"]
    cache.drop((1, "a"))
    cache.drop((1, "c"))
    assert (len(cache), cache.num_bytes) == (0, 0)


def test_large_grammars_leave_no_room_for_others_but_are_kept_themselves() -> None:
    cache = GrammarCache(max_grammars=100, max_bytes=2**20)
    for name in "abcdef":
        cache.put((1, name), BadGrammar(name))
    cache.put((1, "x" * 2**20), BadGrammar("large"))
    assert len(cache) == 1
    assert cache.find((1, "x" * 2**20)) is not None


@pytest.mark.parametrize("make", [hostile_schemas.wide, hostile_schemas.deep])
def test_grammars_take_no_more_memory_than_is_counted(
    vocabulary: Vocabulary, make: Callable[[int], str]
) -> None:
    cache = GrammarCache(max_grammars=100, max_bytes=2**30)
    compiled(vocabulary, "JSON_SCHEMA", make(99))  # compiling itself needs some memory
    before = psutil.Process().memory_info().rss
    for number in range(10):
        source = make(number)
        cache.put((1, source), compiled(vocabulary, "JSON_SCHEMA", source))
    grown = psutil.Process().memory_info().rss - before
    assert grown < cache.num_bytes


def test_replacing_a_verdict_counts_once() -> None:
    cache = verdicts("a", "a", "a")
    once = verdicts("a")
    assert (len(cache), cache.num_bytes) == (1, once.num_bytes)


# --- in threads ---


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[GrammarExecutor]:
    write_byte_tokenizer(tmp_path)
    made = GrammarExecutor(tmp_path, cache=GrammarCache(max_grammars=8, max_bytes=2**30))
    yield made
    made.close()


def settled(executor: GrammarExecutor) -> list[Compilation]:
    """What the next wake-up brings."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        assert select.select([executor.fileno()], [], [], 20)[0], "nothing woke the loop"
        executor.quiet()
        done = executor.settle()
        if done:
            return done
    raise AssertionError("nothing was compiled")


def test_a_grammar_is_compiled_once_and_found_from_then_on(executor: GrammarExecutor) -> None:
    grammar = message("REGEX", "a+")
    assert executor.find(grammar, must=False) is None
    assert executor.find(grammar, must=False) is None
    [done] = settled(executor)
    assert isinstance(done.verdict, CompiledGrammar)
    assert executor.find(grammar, must=False) is done.verdict
    executor.forget(grammar)
    assert executor.find(grammar, must=False) is None


def test_a_refused_grammar_is_refused_again_at_once(executor: GrammarExecutor) -> None:
    grammar = message("REGEX", "([")
    assert executor.find(grammar, must=False) is None
    settled(executor)
    for _ in range(2):
        with pytest.raises(BadGrammar, match="unclosed"):
            executor.find(grammar, must=False)


def test_too_many_at_once_are_refused_unless_accepted_before(
    executor: GrammarExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "MAX_COMPILING", 1)
    assert executor.find(message("REGEX", "a"), must=False) is None
    with pytest.raises(QueueFull):
        executor.find(message("REGEX", "b"), must=False)
    assert executor.find(message("REGEX", "b"), must=True) is None


def test_without_a_tokenizer_every_grammar_is_refused(tmp_path: Path) -> None:
    executor = GrammarExecutor(tmp_path, cache=GrammarCache(max_grammars=8, max_bytes=2**30))
    assert executor.find(message("REGEX", "a"), must=False) is None
    settled(executor)
    with pytest.raises(BadGrammar, match=r"tokenizer\.json cannot be used"):
        executor.find(message("REGEX", "a"), must=False)
    executor.close()


# --- in another process ---


@pytest.fixture
def taster(tmp_path: Path) -> Iterator[Taster]:
    write_byte_tokenizer(tmp_path)
    made = Taster(tmp_path, limit_s=3.0)
    yield made
    made.close()


def test_a_grammar_that_never_compiles_is_given_up_and_the_next_one_is_not(taster: Taster) -> None:
    taster.taste(message("REGEX", "a+"))
    first = taster.pid
    with pytest.raises(BadGrammar, match="too long or too much memory"):
        taster.taste(message("JSON_SCHEMA", '{"multipleOf": 999999937}'))
    taster.taste(message("REGEX", "a+"))
    assert taster.pid not in (None, first)


def test_a_taster_says_what_the_compiler_says(taster: Taster) -> None:
    with pytest.raises(BadGrammar, match="unclosed character class"):
        taster.taste(message("REGEX", "(["))
    with pytest.raises(BadGrammar, match="no text matches it"):
        taster.taste(message("JSON_SCHEMA", '{"$ref": "#"}'))


def test_a_taster_that_was_killed_is_started_again(taster: Taster) -> None:
    taster.taste(message("REGEX", "a"))
    assert taster.pid is not None
    os.kill(taster.pid, signal.SIGKILL)
    with pytest.raises(BadGrammar):
        taster.taste(message("REGEX", "b"))
    taster.taste(message("REGEX", "b"))


def test_levels_by_the_thousand_are_compiled_or_refused(executor: GrammarExecutor) -> None:
    links = {f"a{i}": {"items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(1500)}
    schema = {"$defs": {**links, "a1500": {"type": "null"}}, "$ref": "#/$defs/a0"}
    executor.find(message("JSON_SCHEMA", json.dumps(schema)), must=False)
    [done] = settled(executor)
    assert isinstance(done.verdict, CompiledGrammar)
