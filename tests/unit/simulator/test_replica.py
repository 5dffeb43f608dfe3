"""A replica around the real core serves what is asked, one step ahead."""

from collections.abc import Callable

import numpy as np
import pytest

from bench.simulator import traces
from bench.simulator.clock import Clock
from bench.simulator.cost import QWEN3_8B, StepCost
from bench.simulator.experiment import REPLICA_KINDS, Setup, run
from bench.simulator.fleet import Fleet, Replica
from bench.simulator.recorder import Recorder
from bench.simulator.replica import CoreReplica
from bench.simulator.router import RoundRobin
from scheduler_svc.core.limits import Policy

KINDS = pytest.mark.parametrize("kind", REPLICA_KINDS)
TRACES = {
    "known lengths": traces.poisson(rate=10.0, seconds=4.0, seed=1),
    "unforeseen ends": traces.chat(rate=4.0, seconds=4.0, seed=2, num_apps=3),
    "at once": traces.batch(num_requests=40, seed=3),
    "long": traces.documents(rate=1.0, seconds=4.0, seed=4),
}


@KINDS
@pytest.mark.parametrize("name", TRACES)
def test_every_request_gets_exactly_its_answer_and_ends(kind: str, name: str) -> None:
    recorder = run(Setup(kind=kind), TRACES[name]).recorder
    num_turns = sum(len(conversation.turns) for conversation in TRACES[name])
    assert len(recorder.served) == num_turns
    for each in recorder.served:
        number = each.job.number
        assert recorder.num_tokens[number] == each.job.turn.answer.num_tokens
        assert each.ended_s == pytest.approx(recorder.last_s[number])
        assert each.arrived_s < recorder.first_s[number] <= recorder.last_s[number]


@KINDS
def test_every_request_ends_when_memory_is_far_too_small(kind: str) -> None:
    trace = traces.poisson(rate=10.0, seconds=4.0, seed=1)
    outcome = run(Setup(kind=kind, num_blocks=400), trace)
    assert outcome.summary.num_preemptions > 0
    for each in outcome.recorder.served:
        assert outcome.recorder.num_tokens[each.job.number] == each.job.turn.answer.num_tokens


@KINDS
def test_a_run_repeats_exactly(kind: str) -> None:
    setup, trace = Setup(kind=kind), traces.chat(rate=4.0, seconds=4.0, seed=2)
    assert run(setup, trace).summary == run(setup, trace).summary


@KINDS
def test_a_turn_finds_the_conversation_before_it_in_the_cache(kind: str) -> None:
    trace = traces.chat(rate=2.0, seconds=4.0, seed=2)
    recorder = run(Setup(kind=kind), trace).recorder
    later = [each for each in recorder.served if each.job.turn_index]
    assert later
    for each in later:
        num_said = sum(segment.num_tokens for segment in each.job.prompt[:-1])
        assert each.num_cached in (num_said // 16 * 16, (num_said - 1) // 16 * 16)


@KINDS
def test_a_request_alone_pays_its_prompt_and_then_a_step_a_token(kind: str) -> None:
    trace = traces.document(start_s=1.0, num_prompt_tokens=1000, seed=1)
    recorder = run(Setup(kind=kind), trace, keeps_gaps=True).recorder
    step_ms = 1e3 * StepCost(QWEN3_8B).step_s(num_decode_rows=1, num_context_tokens=1100)
    gaps_ms = 1e3 * np.concatenate([each.gaps_s for each in recorder.gaps_at])
    # The GPU never waits: the next step is planned while one runs.
    assert np.median(gaps_ms) == pytest.approx(step_ms, rel=0.01)
    assert 20 < 1e3 * (recorder.first_s[1] - 1.0) < 35


def test_without_a_step_ahead_the_gpu_waits_for_the_core() -> None:
    trace = traces.streams(num_streams=1, num_answer_tokens=200, seed=1)
    ahead, behind = (
        run(Setup(policy=Policy(max_steps_in_flight=depth)), trace).summary.itl_p50_ms
        for depth in (2, 1)
    )
    assert 0.1 < behind - ahead < 0.2


@KINDS
def test_a_full_queue_refuses(kind: str) -> None:
    setup = Setup(kind=kind, max_num_seqs=4, policy=Policy(max_queue_requests=10))
    outcome = run(setup, traces.batch(num_requests=40, seed=1))
    assert outcome.summary.num_refused > 0
    num_served = sum(each.ended_s is not None for each in outcome.recorder.served)
    assert num_served + outcome.summary.num_refused == 40


def test_the_core_has_nothing_left_after_a_trace() -> None:
    clock, recorder = Clock(), Recorder()
    replicas: list[CoreReplica] = []
    fleet = Fleet(clock, recorder, RoundRobin(1))

    def make(on_end: Callable[[int], None]) -> Replica:
        replica = CoreReplica(
            clock,
            StepCost(QWEN3_8B),
            recorder,
            policy=Policy(),
            limits=Setup().limits(),
            on_end=on_end,
        )
        replicas.append(replica)
        return replica

    fleet.add(make, count=1)
    fleet.play(traces.chat(rate=4.0, seconds=4.0, seed=2))
    clock.run()
    counts = replicas[0].core.counts()
    assert (counts.num_live, counts.num_requests, counts.num_blocks_in_use) == (0, 0, 0)
    assert counts.num_blocks_cached + counts.num_blocks_free == counts.num_blocks
