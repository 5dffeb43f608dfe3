"""Requests through the real loop and core, over real sockets.

The rank reads the contract by itself, so that both sides of it are tested.
"""

import pytest

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.engine.request_codec import MAX_BLOB_BYTES
from tests.unit.engine.scripted_rank import Script, expected_tokens
from tests.unit.engine.world import World


@pytest.mark.parametrize("max_steps_in_flight", [1, 2])
def test_tokens_are_those_of_the_model(world: World, max_steps_in_flight: int) -> None:
    world.engine(max_steps_in_flight=max_steps_in_flight)
    world.rank()
    frontend = world.frontend()
    prompts = {n: [n, *range(5, 5 + 3 * n)] for n in range(1, 20)}
    for number, prompt in prompts.items():
        frontend.submit(number, prompt, max_tokens=number + 2)
    frontend.pump_until(lambda: all(frontend.is_ended(number) for number in prompts))
    for number, prompt in prompts.items():
        assert frontend.tokens(number) == expected_tokens(prompt, number + 2)
        end = frontend.outputs[number, 0].end
        assert end is not None
        assert end.reason == engine.END_REASON_LENGTH
        assert number in frontend.starts


@pytest.mark.parametrize("cache", ["on", "off"])
def test_tokens_are_the_same_in_a_tiny_cache_with_small_steps(world: World, cache: str) -> None:
    core = world.engine(no_prefix_cache=cache == "off")
    rank = world.rank(num_blocks=20, max_num_batched_tokens=11, max_num_seqs=5)
    frontend = world.frontend()
    prompts = {n: [*range(20), n, n] for n in range(1, 9)}
    for number, prompt in prompts.items():
        frontend.submit(number, prompt, max_tokens=30)
    frontend.pump_until(lambda: all(frontend.is_ended(number) for number in prompts))
    for number, prompt in prompts.items():
        assert frontend.tokens(number) == expected_tokens(prompt, 30)
    ends = [output.end for output in frontend.outputs.values()]
    assert sum(end.num_preemptions for end in ends if end is not None) > 0
    hits = sum(start.num_cached_tokens for start in frontend.starts.values())
    assert (hits > 0) == (cache == "on")
    assert rank.hellos == ["start"]
    core.stop()


def test_many_outputs_of_one_prompt_stream_side_by_side(world: World) -> None:
    world.engine()
    world.rank()
    frontend = world.frontend()
    prompt = list(range(10, 23))
    frontend.submit(1, prompt, num_outputs=3, max_tokens=12)
    frontend.pump_until(lambda: all(frontend.is_ended(1, index) for index in range(3)))
    for index in range(3):
        assert frontend.tokens(1, index) == expected_tokens(prompt, 12)


def test_stop_id_ends_an_output(world: World) -> None:
    world.engine()
    world.rank()
    frontend = world.frontend()
    expected = expected_tokens([1, 2, 3], 10)
    frontend.submit(1, [1, 2, 3], max_tokens=50, stop_token_ids=[expected[6]])
    frontend.pump_until(lambda: frontend.is_ended(1))
    end = frontend.outputs[1, 0].end
    assert end is not None
    assert (end.reason, end.stop_token_id) == (engine.END_REASON_STOP_TOKEN, expected[6])
    assert frontend.tokens(1) == expected[:7]


def test_frontends_word_ends_a_running_output_without_another_end(world: World) -> None:
    core = world.engine()
    world.rank(script=Script(step_s=0.002))
    frontend = world.frontend()
    frontend.submit(1, [1, 2, 3], max_tokens=300, keep_for_ms=60_000)
    frontend.pump_until(lambda: len(frontend.tokens(1)) >= 5)
    frontend.finish(1, 4, reason=engine.END_REASON_STOP_STRING, stop_string="so")
    frontend.submit(2, [4, 5], max_tokens=20)
    frontend.pump_until(lambda: frontend.is_ended(2))
    assert not frontend.is_ended(1)
    num_tokens = len(frontend.tokens(1))
    assert num_tokens < 300
    # what is retained is cut where the frontend said
    frontend.attach(3, "request-1")
    frontend.pump_until(lambda: 3 in frontend.attached)
    assert frontend.tokens(3) == expected_tokens([1, 2, 3], 4)
    end = frontend.outputs[3, 0].end
    assert end is not None
    assert (end.reason, end.message) == (engine.END_REASON_STOP_STRING, "so")
    core.stop()


def test_cancel_by_name_ends_a_request_and_is_answered(world: World) -> None:
    world.engine()
    world.rank(script=Script(step_s=0.002))
    frontend = world.frontend()
    frontend.submit(1, [1, 2, 3], max_tokens=300)
    frontend.pump_until(lambda: len(frontend.tokens(1)) >= 3)
    frontend.cancel(7, "request-1")
    frontend.pump_until(lambda: frontend.is_ended(1) and 7 in frontend.cancel_answers)
    answer = frontend.cancel_answers[7]
    assert (answer.is_known, answer.was_finished) == (True, False)
    end = frontend.outputs[1, 0].end
    assert end is not None
    assert end.reason == engine.END_REASON_CANCELLED
    assert frontend.tokens(1) == expected_tokens([1, 2, 3], len(frontend.tokens(1)))
    frontend.cancel(8, "never heard of")
    frontend.pump_until(lambda: 8 in frontend.cancel_answers)
    assert not frontend.cancel_answers[8].is_known


def test_refusals_name_the_reason_and_keep_nothing(world: World) -> None:
    core = world.engine(max_outputs=2)
    world.rank()
    frontend = world.frontend()
    frontend.submit(1, list(range(400)))
    frontend.submit(2, [1, 2], num_outputs=3)
    frontend.submit(3, [1, 2], prompt_tokens=b"\1\2\3")
    frontend.submit(4, [1, 2], blob=bytes(MAX_BLOB_BYTES + 1))
    frontend.pump_until(lambda: len(frontend.rejected) == 4)
    reasons = {number: rejected.reason for number, rejected in frontend.rejected.items()}
    invalid = engine.REJECT_REASON_INVALID
    too_long = engine.REJECT_REASON_PROMPT_TOO_LONG
    assert reasons == {1: too_long, 2: invalid, 3: invalid, 4: invalid}
    assert "prompt_tokens" in frontend.rejected[3].message
    assert "blob" in frontend.rejected[4].message
    core.stop()
    readings = {
        (reading.name, *reading.labels): reading.counter
        for reading in core.loop.snapshot().readings
    }
    assert readings["requests_rejected", "invalid"] == 3
    assert readings["requests_rejected", "prompt_too_long"] == 1


def test_same_name_with_another_body_is_refused_and_with_the_same_attaches(world: World) -> None:
    world.engine()
    world.rank(script=Script(step_s=0.002))
    first, second = world.frontend(), world.frontend("frontend-1")
    first.submit(1, [1, 2, 3], max_tokens=80, request_id="same")
    first.pump_until(lambda: len(first.tokens(1)) >= 3)
    second.submit(5, [1, 2, 3], max_tokens=80, request_id="same", body_digest=b"other")
    second.pump_until(lambda: 5 in second.rejected)
    assert second.rejected[5].reason == engine.REJECT_REASON_BODY_DIFFERS
    second.submit(6, [1, 2, 3], max_tokens=80, request_id="same")
    second.pump_until(lambda: second.is_ended(6))
    assert 6 in second.attached
    assert second.tokens(6) == expected_tokens([1, 2, 3], 80)
    first.pump_until(lambda: first.superseded == [1])
    assert not first.is_ended(1)


def test_prompts_are_stepped_in_one_batch(world: World) -> None:
    world.engine()
    rank = world.rank(script=Script(step_s=0.01))
    frontend = world.frontend()
    for number in range(1, 9):
        frontend.submit(number, [number] * 9, max_tokens=20)
    frontend.pump_until(lambda: all(frontend.is_ended(number) for number in range(1, 9)))
    # eight at once, not one after the other
    assert rank.num_steps < 8 * 10


def test_a_request_is_planned_in_the_turn_that_takes_it_in(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # nothing else wakes this core: what it does not plan at once waits until the rank gives up
    core = world.engine()
    rank = world.rank()
    frontend = world.frontend()
    frontend.submit(1, [1, 2, 3], max_tokens=2)
    frontend.pump_until(lambda: frontend.is_ended(1))
    monkeypatch.setattr(core.loop, "_wait_ms", lambda _: 60_000)
    for number in (2, 3):
        frontend.submit(number, [1, 2, number], max_tokens=2)
        frontend.pump_until(lambda n=number: frontend.is_ended(n))  # type: ignore[misc] # bound at once
    assert rank.hellos == ["start"]
