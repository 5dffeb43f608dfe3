"""Requests with a grammar: compiled first, then accepted; masked in each of their steps."""

import json
import re
from pathlib import Path

import pytest

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.engine.grammar.compiler import CompiledGrammar
from scheduler_svc.engine.grammar.executor import GrammarExecutor
from tests.fakes.byte_tokenizer import END_ID, byte_tokenizer, write_byte_tokenizer
from tests.unit.engine.grammar_rig import ids_of, message
from tests.unit.engine.running_engine import RunningEngine, ScriptedSupervisor
from tests.unit.engine.scripted_frontend import resumed
from tests.unit.engine.scripted_rank import Script
from tests.unit.engine.world import World


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    folder.mkdir()
    write_byte_tokenizer(folder)
    return str(folder)


def formed(kind: str, source: str, **fields: object) -> dict[str, object]:
    """The fields of a Submit with a grammar."""
    usual: dict[str, object] = {"eos_token_ids": [END_ID], "max_tokens": 60}
    return {**usual, "grammar": message(kind, source), **fields}


def text_of(tokens: list[int]) -> str:
    """What was generated before the end."""
    return byte_tokenizer().decode(tokens)


def readings(core: RunningEngine) -> dict[tuple[str, ...], float]:
    """Counters, gauges, and how often histograms observed."""
    found = {}
    for each in core.loop.snapshot().readings:
        value = {
            "counter": each.counter,
            "gauge": each.gauge,
            "histogram": float(sum(each.histogram.counts)),
        }
        found[each.name, *each.labels] = value[each.WhichOneof("value") or "gauge"]
    return found


def test_outputs_have_the_form_and_their_grammar_is_compiled_once(world: World, model: str) -> None:
    core = world.engine(model=model)
    world.rank()
    frontend = world.frontend()
    schema = '{"enum": [{"a": 1}, [true, null], "text"]}'
    for number in range(1, 7):
        frontend.submit(number, [number] * number, **formed("JSON_SCHEMA", schema, num_outputs=2))
    frontend.submit(7, [5, 5], max_tokens=30)
    keys = [(number, index) for number in range(1, 7) for index in range(2)]
    frontend.pump_until(lambda: all(frontend.is_ended(*key) for key in keys))
    frontend.pump_until(lambda: frontend.is_ended(7))
    for key in keys:
        assert json.loads(text_of(frontend.tokens(*key))) in [{"a": 1}, [True, None], "text"]
        assert frontend.tokens(*key)[-1] == END_ID
    core.stop()
    counted = readings(core)
    assert counted["grammar_compile_seconds", "compiled"] == 1
    assert counted[("grammar_cache_grammars",)] == 1


def test_a_bad_grammar_is_refused_with_the_reason(world: World, model: str) -> None:
    core = world.engine(model=model)
    world.rank()
    frontend = world.frontend()
    for number in (1, 2):
        frontend.submit(number, [1], **formed("REGEX", "(["))
        frontend.pump_until(lambda n=number: n in frontend.rejected)  # type: ignore[misc]
        assert frontend.rejected[number].reason == engine.REJECT_REASON_GRAMMAR
        assert "unclosed" in frontend.rejected[number].message
    core.stop()
    assert readings(core)["requests_rejected", "grammar"] == 2
    assert readings(core)["grammar_compile_seconds", "refused"] == 1


def test_what_names_a_request_waits_while_its_grammar_is_compiled(
    world: World, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.engine(model=model)
    world.rank(script=Script(step_s=0.002))
    first, second = world.frontend(), world.frontend("frontend-1")
    found: list[str] = []
    find = GrammarExecutor.find

    def hesitating(
        self: GrammarExecutor, grammar: engine.Grammar, *, must: bool
    ) -> CompiledGrammar | None:
        found.append(grammar.source)
        return find(self, grammar, must=must) if len(found) > 1 else None

    monkeypatch.setattr(GrammarExecutor, "find", hesitating)
    first.submit(1, [1, 2], request_id="named", **formed("REGEX", "[ab]{50}"))
    first.pump_until(lambda: bool(found))
    second.attach(4, "named")
    second.cancel(9, "unknown")
    second.pump_until(lambda: 9 in second.cancel_answers)
    assert 4 not in second.rejected
    # another grammar wakes those that wait
    second.submit(5, [1], **formed("REGEX", "c"))
    second.pump_until(lambda: second.is_ended(5) and second.is_ended(4))
    assert re.fullmatch("[ab]{50}", text_of(second.tokens(4)))
    assert second.attached[4].submit.grammar == message("REGEX", "[ab]{50}")


def test_a_request_whose_grammar_takes_too_long_is_refused(
    world: World, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.engine(model=model, grammar_compile_limit=0.1)
    world.rank()
    frontend = world.frontend()
    monkeypatch.setattr(GrammarExecutor, "find", lambda *_, **__: None)
    frontend.submit(1, [1], **formed("REGEX", "a"))
    frontend.pump_until(lambda: 1 in frontend.rejected)
    assert frontend.rejected[1].reason == engine.REJECT_REASON_GRAMMAR
    assert "not compiled within 0.1 s" in frontend.rejected[1].message


def test_a_request_that_is_let_go_while_its_grammar_is_compiled_is_forgotten(
    world: World, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.engine(model=model)
    world.rank()
    frontend = world.frontend()
    find, is_slow = GrammarExecutor.find, [True]
    monkeypatch.setattr(
        GrammarExecutor,
        "find",
        lambda self, grammar, *, must: None if is_slow[0] else find(self, grammar, must=must),
    )
    frontend.submit(1, [1], request_id="gone", **formed("REGEX", "a"))
    frontend.detach(1)
    frontend.cancel(2, "gone")
    frontend.pump_until(lambda: 2 in frontend.cancel_answers)
    assert not frontend.cancel_answers[2].is_known
    is_slow[0] = False
    frontend.submit(3, [1], **formed("REGEX", "b"))
    frontend.pump_until(lambda: frontend.is_ended(3))
    assert 1 not in frontend.accepted


def is_ordered_to_kill(supervisor: ScriptedSupervisor) -> bool:
    """Whether the core wants the rank group killed."""
    supervisor.pump()
    return bool(supervisor.kill_orders)


def test_a_form_lives_through_the_death_of_workers_and_the_core(world: World, model: str) -> None:
    core = world.engine(model=model)
    world.rank(script=Script(hang_at=12, step_s=0.002))
    frontend = world.frontend()
    supervisor = world.supervisor(core)
    fields = formed("REGEX", "([ab]{3},){12}", request_id="long")
    frontend.submit(1, [3, 4, 5], **fields)
    frontend.pump_until(lambda: len(frontend.tokens(1)) >= 8)
    frontend.pump_until(lambda: is_ordered_to_kill(supervisor))
    supervisor.state.group_incarnation = 2
    supervisor.tell_state()
    world.rank(group=2, script=Script(step_s=0.002))
    frontend.pump_until(lambda: len(frontend.tokens(1)) >= 20)
    received = frontend.tokens(1)
    core.stop()
    world.engine(model=model)
    again = world.frontend()
    again.resume_at(1, received)
    again.submit(1, [3, 4, 5], **{**fields, "resume": [resumed(received)], "was_accepted": True})
    again.pump_until(lambda: again.is_ended(1))
    tokens = again.tokens(1)
    assert tokens[: len(received)] == received
    assert tokens[-1] == END_ID
    assert [len(part) for part in text_of(tokens).split(",")] == [3] * 12 + [0]


def test_resumed_tokens_that_do_not_fit_end_the_output(world: World, model: str) -> None:
    world.engine(model=model)
    world.rank()
    frontend = world.frontend()
    frontend.submit(1, [3], **formed("REGEX", "a+", resume=[resumed(ids_of("xyz"))]))
    frontend.resume_at(1, ids_of("xyz"))
    frontend.pump_until(lambda: frontend.is_ended(1))
    end = frontend.outputs[1, 0].end
    assert end is not None
    assert end.reason == engine.END_REASON_ERROR
    assert "does not fit" in end.message
