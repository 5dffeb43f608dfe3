"""Frontends lag, die, lose messages and come back; nothing is lost and nothing is told twice."""

from pathlib import Path

from octavo.internal.v1 import control_pb2 as control
from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.endpoints import Endpoints
from tests.unit.engine.scripted_frontend import ScriptedFrontend, resumed
from tests.unit.engine.scripted_rank import Script, expected_tokens
from tests.unit.engine.world import World


def test_frontend_that_does_not_read_misses_nothing_and_holds_nobody_up(world: World) -> None:
    world.engine()
    rank = world.rank(num_blocks=4000)
    slow, quick = world.frontend(receive_limit=1), world.frontend("frontend-1")
    prompts = {n: [n, n + 1] for n in range(1, 31)}
    for number, prompt in prompts.items():
        slow.submit(number, prompt, max_tokens=380)
    slow.pump_until(lambda: len(slow.accepted) == len(prompts))
    while rank.num_steps < 350:
        quick.pump(10)
        slow.beat()
    quick.submit(1, [9, 9], max_tokens=20, request_id="quick")
    while not quick.is_ended(1):
        quick.pump(10)
        slow.beat()
    num_delivers = slow.num_delivers
    assert not any(slow.is_ended(number) for number in prompts)
    slow.pump_until(lambda: all(slow.is_ended(number) for number in prompts))
    for number, prompt in prompts.items():
        assert slow.tokens(number) == expected_tokens(prompt, 380)
    # some of it came merged: not one message for each step
    assert slow.num_delivers - num_delivers < rank.num_steps


def test_another_frontend_takes_over_what_a_dead_one_left(world: World) -> None:
    world.engine()
    world.rank(script=Script(step_s=0.005))
    first, second = world.frontend(), world.frontend("frontend-1")
    first.submit(1, [1, 2, 3], max_tokens=80, num_outputs=2, keep_for_ms=5000)
    first.pump_until(lambda: len(first.tokens(1)) >= 5)
    first.close()
    second.attach(9, "request-1")
    second.pump_until(lambda: second.is_ended(9, 0) and second.is_ended(9, 1))
    assert second.tokens(9, 0) == expected_tokens([1, 2, 3], 80)
    submit = second.attached[9].submit
    assert (submit.number, submit.blob, submit.num_outputs) == (0, b"blob", 2)
    assert (submit.request_id, submit.body_digest) == ("request-1", b"body")
    assert submit.keep_for_ms == 5000
    assert not submit.resume


def test_frontend_that_says_hello_anew_attaches_to_its_own(world: World) -> None:
    world.engine()
    world.rank(script=Script(step_s=0.005))
    frontend = world.frontend()
    frontend.submit(1, [4, 5, 6], max_tokens=60)
    frontend.pump_until(lambda: len(frontend.tokens(1)) >= 4)
    frontend.hello()
    frontend.attach(1, "request-1")
    frontend.pump_until(lambda: frontend.is_ended(1))
    assert frontend.tokens(1) == expected_tokens([4, 5, 6], 60)
    assert frontend.superseded == []  # the former connection is nobody's any more


def test_lost_message_silences_the_connection_until_a_new_one(world: World) -> None:
    world.engine()
    world.rank(script=Script(step_s=0.002))
    frontend = world.frontend()
    frontend.submit(1, [4, 5, 6], max_tokens=300)
    frontend.pump_until(lambda: 1 in frontend.accepted)
    frontend.lose_a_message()
    frontend.submit(2, [7, 8])
    # two life signs of the core later
    num_statuses = len(frontend.statuses)
    for _ in range(12):
        frontend.pump(100)
    assert 2 not in frontend.accepted
    assert 2 not in frontend.rejected
    assert len(frontend.statuses) <= num_statuses + 1
    frontend.hello()
    frontend.attach(1, "request-1")
    frontend.submit(2, [7, 8])
    frontend.pump_until(lambda: frontend.is_ended(1) and frontend.is_ended(2))
    assert frontend.tokens(1) == expected_tokens([4, 5, 6], 300)


def test_unseen_frontend_goes_on_when_it_is_heard_again(world: World) -> None:
    core = world.engine()
    world.rank(script=Script(step_s=0.01))
    frontend = world.frontend()
    frontend.submit(1, [4, 5, 6], max_tokens=210)
    frontend.pump_until(lambda: len(frontend.tokens(1)) >= 3)
    link = core.loop.parts.desk.link
    watcher = world.frontend("frontend-1")
    watcher.pump_until(lambda: any(c.is_unseen for c in link if c.name == "frontend-0"))
    frontend.pump_until(lambda: frontend.is_ended(1))
    assert frontend.tokens(1) == expected_tokens([4, 5, 6], 210)


def test_detached_request_lives_on_and_is_found(world: World) -> None:
    world.engine()
    world.rank(script=Script(step_s=0.002))
    frontend = world.frontend()
    frontend.submit(1, [1, 2], max_tokens=40, keep_for_ms=20_000)
    frontend.submit(2, [3, 4], max_tokens=300, keep_for_ms=20_000)
    frontend.pump_until(lambda: len(frontend.tokens(1)) >= 2)
    frontend.detach(1)
    frontend.detach(2, cancel=True)
    frontend.attach(3, "request-1")
    frontend.attach(4, "request-2")
    frontend.pump_until(lambda: frontend.is_ended(3) and 4 in frontend.rejected)
    assert frontend.tokens(3) == expected_tokens([1, 2], 40)
    assert frontend.rejected[4].reason == engine.REJECT_REASON_NOT_FOUND


def test_restarted_core_goes_on_from_what_frontends_have(world: World) -> None:
    first_core = world.engine()
    rank = world.rank(script=Script(step_s=0.005))
    frontend = world.frontend()
    frontend.submit(1, [1, 2, 3], max_tokens=100)
    frontend.submit(2, [5, 6], max_tokens=100, keep_for_ms=20_000)
    frontend.pump_until(lambda: len(frontend.tokens(1)) >= 7 and len(frontend.tokens(2)) >= 5)
    received = {number: list(frontend.tokens(number)) for number in (1, 2)}
    incarnation = frontend.statuses[-1].core_incarnation
    first_core.stop()

    world.engine()
    frontend.hello()
    assert frontend.statuses[0].core_incarnation != incarnation
    other = world.frontend("frontend-1")
    # comes before its owner has submitted it again: it is held, not refused
    other.attach(1, "request-2")
    other.cancel(1, "unheard of")
    frontend.submit(1, [1, 2, 3], max_tokens=100, was_accepted=True, resume=[resumed(received[1])])
    frontend.submit(
        2,
        [5, 6],
        max_tokens=100,
        was_accepted=True,
        is_detached=True,
        keep_for_ms=20_000,
        resume=[resumed(received[2])],
    )
    frontend.resume_at(1, received[1])
    frontend.pump_until(lambda: frontend.is_ended(1))
    assert frontend.tokens(1) == expected_tokens([1, 2, 3], 100)
    other.pump_until(lambda: other.is_ended(1) and 1 in other.cancel_answers)
    assert other.tokens(1) == expected_tokens([5, 6], 100)
    assert not other.cancel_answers[1].is_known
    assert "silence" in rank.hellos


def test_resume_from_elsewhere_is_continued_once_no_owner_claims_the_name(world: World) -> None:
    world.engine()
    world.rank()
    frontend = world.frontend()
    known = expected_tokens([8, 9], 5)
    frontend.submit(1, [8, 9], max_tokens=12, resume=[resumed(known)])
    frontend.resume_at(1, known)
    frontend.pump_until(lambda: frontend.is_ended(1))
    assert frontend.tokens(1) == expected_tokens([8, 9], 12)


def test_drain_refuses_new_requests_and_finishes_the_others(world: World) -> None:
    core = world.engine()
    supervisor = world.supervisor(core)
    world.rank(script=Script(step_s=0.002))
    frontend = world.frontend()
    frontend.submit(1, [1, 2], max_tokens=100)
    frontend.pump_until(lambda: len(frontend.tokens(1)) >= 3)
    frontend.pump_until(supervisor.knows_core)
    supervisor.order(control.ControlMessage(drain=control.Drain(limit_ms=60_000)))
    frontend.pump_until(lambda: frontend.statuses[-1].is_draining)
    assert not frontend.statuses[-1].is_accepting
    frontend.submit(2, [1, 2])
    frontend.pump_until(lambda: 2 in frontend.rejected and frontend.is_ended(1))
    assert frontend.rejected[2].reason == engine.REJECT_REASON_DRAINING
    assert frontend.tokens(1) == expected_tokens([1, 2], 100)

    def is_drained() -> bool:
        supervisor.pump()
        return supervisor.snapshots[-1].is_drained

    frontend.pump_until(is_drained)
    assert not supervisor.snapshots[-1].is_ready
    supervisor.order(control.ControlMessage(shutdown=control.Shutdown(reason="over")))
    frontend.pump_until(lambda: core.is_stopping)


def test_drains_limit_ends_what_is_left(world: World) -> None:
    core = world.engine()
    supervisor = world.supervisor(core)
    world.rank(script=Script(step_s=0.01))
    frontend = world.frontend()
    frontend.submit(1, [1, 2], max_tokens=390)
    frontend.pump_until(lambda: len(frontend.tokens(1)) >= 3)
    frontend.pump_until(supervisor.knows_core)
    supervisor.order(control.ControlMessage(drain=control.Drain(limit_ms=100)))
    frontend.pump_until(lambda: frontend.is_ended(1))
    end = frontend.outputs[1, 0].end
    assert end is not None
    assert end.reason == engine.END_REASON_DRAINED
    num_tokens = len(frontend.tokens(1))
    assert frontend.tokens(1) == expected_tokens([1, 2], num_tokens)


def test_supervisor_is_told_readings_and_readiness(world: World) -> None:
    core = world.engine()
    supervisor = world.supervisor(core)
    frontend = world.frontend()

    def ready() -> bool:
        supervisor.pump()
        return any(snapshot.is_ready for snapshot in supervisor.snapshots)

    frontend.pump_until(lambda: not ready() and bool(supervisor.snapshots))
    world.rank()
    frontend.submit(1, [1, 2, 3], max_tokens=9)
    frontend.pump_until(lambda: ready() and frontend.is_ended(1))

    def readings() -> dict[str, control.Reading]:
        supervisor.pump()
        return {reading.name: reading for reading in supervisor.snapshots[-1].readings}

    frontend.pump_until(lambda: readings()["generation_tokens"].counter == 9)
    last = readings()
    assert last["prompt_tokens"].counter == 3
    assert last["worker_up"].gauge == 1
    assert last["num_requests_running"].gauge == 0
    assert sum(last["request_queue_time_seconds"].histogram.counts) == 1
    assert supervisor.snapshots[0].not_ready_reason


def test_first_status_names_the_core_even_to_a_frontend_that_was_there_before(
    world: World, tmp_path: Path
) -> None:
    frontend = ScriptedFrontend(world.context, Endpoints(tmp_path).engine)
    frontend.greet()
    world.engine()
    frontend.pump_until(lambda: len(frontend.statuses) >= 2)
    frontend.close()
    incarnations = {status.core_incarnation for status in frontend.statuses}
    assert len(incarnations) == 1
    assert 0 not in incarnations
