"""Workers die, hang, lose plans and disagree; streams go on with the same tokens."""

import pytest

from octavo.internal.v1 import engine_pb2 as engine
from tests.unit.engine.running_engine import RunningEngine, ScriptedSupervisor
from tests.unit.engine.scripted_frontend import ScriptedFrontend
from tests.unit.engine.scripted_rank import Script, expected_tokens
from tests.unit.engine.world import World

PROMPTS = {n: [n, *range(3, 3 + 2 * n)] for n in range(1, 7)}


def submit_all(frontend: ScriptedFrontend) -> None:
    for number, prompt in PROMPTS.items():
        frontend.submit(number, prompt, max_tokens=25)


def assert_all_exact(frontend: ScriptedFrontend) -> None:
    frontend.pump_until(lambda: all(frontend.is_ended(number) for number in PROMPTS))
    for number, prompt in PROMPTS.items():
        assert frontend.tokens(number) == expected_tokens(prompt, 25)


def recoveries(core: RunningEngine) -> dict[str, float]:
    core.stop()
    readings = core.loop.snapshot().readings
    return {r.labels[0]: r.counter for r in readings if r.name == "recoveries"}


@pytest.mark.parametrize("max_steps_in_flight", [1, 2])
def test_streams_survive_the_death_of_a_worker(world: World, max_steps_in_flight: int) -> None:
    core = world.engine(max_steps_in_flight=max_steps_in_flight)
    first = world.rank(group=1, script=Script(die_at=7))
    frontend = world.frontend()
    submit_all(frontend)
    first.join(timeout=10)
    assert not first.is_alive()
    world.rank(group=2)
    assert_all_exact(frontend)
    assert recoveries(core) in ({"rank_died": 1}, {"plan_not_sent": 1})


def test_word_of_the_worker_supervisor_ends_the_epoch_at_once(world: World) -> None:
    core = world.engine()
    supervisor = world.supervisor(core, group=1)
    first = world.rank(group=1, script=Script(hang_at=6))
    frontend = world.frontend()
    submit_all(frontend)
    frontend.pump_until(lambda: len(frontend.tokens(1)) >= 4)
    supervisor.state.group_incarnation = 0
    supervisor.state.last_death = "rank 0 ended with signal 9"
    supervisor.tell_state()
    frontend.pump_until(lambda: sees_group(supervisor, 0))
    first.stop()
    supervisor.state.group_incarnation = 2
    supervisor.tell_state()
    world.rank(group=2)
    assert_all_exact(frontend)
    assert recoveries(core) == {"rank_died": 1}


def sees_group(supervisor: ScriptedSupervisor, group: int) -> bool:
    """Whether the core has passed on that this group runs."""
    supervisor.pump()
    return any(state.group_incarnation == group for state in supervisor.group_states)


@pytest.mark.parametrize("fault", ["skip_plan_at", "wrong_position_at"])
def test_gap_or_wrong_checksum_begins_an_epoch_with_the_same_tokens(
    world: World, fault: str
) -> None:
    core = world.engine()
    rank = world.rank(script=Script(**{fault: 5}))
    frontend = world.frontend()
    submit_all(frontend)
    assert_all_exact(frontend)
    assert len(rank.hellos) == 2
    assert rank.hellos[1].startswith(("gap", "checksum"))
    assert recoveries(core) == {"rank_asked": 1}


def test_hung_worker_is_killed_by_the_step_deadline(world: World) -> None:
    core = world.engine(step_deadline_floor=0.3)
    supervisor = world.supervisor(core, group=1)
    hung = world.rank(group=1, script=Script(hang_at=9))
    frontend = world.frontend()
    submit_all(frontend)

    def is_ordered_twice() -> bool:
        supervisor.pump()
        return len(supervisor.kill_orders) >= 2

    frontend.pump_until(is_ordered_twice)  # it is repeated until the group is gone
    assert set(supervisor.kill_orders) == {1}
    hung.stop()
    supervisor.state.group_incarnation = 2
    supervisor.tell_state()
    world.rank(group=2)
    assert_all_exact(frontend)
    supervisor.pump()
    num_orders = len(supervisor.kill_orders)
    num_pings = supervisor.num_worker_pings

    def is_pinged_on() -> bool:
        supervisor.pump()
        return supervisor.num_worker_pings >= num_pings + 3

    frontend.pump_until(is_pinged_on)
    assert len(supervisor.kill_orders) == num_orders
    assert recoveries(core) == {"step_overdue": 1}


def test_one_of_two_ranks_dies_and_the_group_starts_again(world: World) -> None:
    core = world.engine()
    supervisor = world.supervisor(core, group=1)
    healthy = world.rank(group=1, rank=0, world_size=2)
    sick = world.rank(group=1, rank=1, world_size=2, script=Script(die_at=6))
    frontend = world.frontend()
    submit_all(frontend)
    sick.join(timeout=10)
    # rank 0 may have launched a step that rank 1 never saw: such a group cannot go on
    supervisor.state.group_incarnation = 0
    supervisor.tell_state()
    frontend.pump_until(lambda: sees_group(supervisor, 0))
    healthy.stop()
    supervisor.state.group_incarnation = 2
    supervisor.tell_state()
    ranks = [world.rank(group=2, rank=rank, world_size=2) for rank in range(2)]
    assert_all_exact(frontend)
    frontend.pump_until(lambda: ranks[0].num_steps == ranks[1].num_steps)
    core.stop()


def test_new_requests_wait_for_workers_and_then_are_refused(world: World) -> None:
    world.engine(core_restart_grace=0.3)
    frontend = world.frontend()
    assert not frontend.statuses[0].is_accepting
    assert frontend.statuses[0].max_sequence_tokens == 0
    frontend.submit(1, [1, 2])
    frontend.submit(2, [1, 2], was_accepted=True)
    frontend.pump_until(lambda: 1 in frontend.rejected)
    assert frontend.rejected[1].reason == engine.REJECT_REASON_NO_WORKERS
    assert frontend.rejected[1].retry_after_ms > 0
    assert 2 not in frontend.rejected
    world.rank()
    frontend.pump_until(lambda: frontend.is_ended(2))
    assert frontend.tokens(2) == expected_tokens([1, 2], 8)
    status = frontend.statuses[-1]
    assert status.is_accepting
    assert (status.max_sequence_tokens, status.vocab_size) == (400, 997)
    assert status.model_digest == b"model"


def test_rank_of_another_protocol_version_is_sent_away(world: World) -> None:
    core = world.engine()
    supervisor = world.supervisor(core)
    rank = world.rank(protocol_version=2)
    rank.join(timeout=10)
    assert rank.shut_down_for is not None
    assert "version 2" in rank.shut_down_for
    frontend = world.frontend()

    def is_told() -> bool:
        supervisor.pump()
        return any("version 2" in s.not_ready_reason for s in supervisor.snapshots)

    frontend.pump_until(is_told)


def test_ranks_with_other_models_are_sent_away(world: World) -> None:
    world.engine()
    ranks = [world.rank(rank=0, world_size=2), world.rank(rank=1, world_size=2, model_digest=b"x")]
    for rank in ranks:
        rank.join(timeout=10)
        assert rank.shut_down_for is not None
        assert "model_digest" in rank.shut_down_for


def test_permanent_error_of_the_workers_is_told(world: World) -> None:
    core = world.engine()
    supervisor = world.supervisor(core, group=0)
    frontend = world.frontend()
    frontend.submit(1, [1, 2])
    supervisor.state.permanent_error = "--model: no such folder"
    supervisor.tell_state()
    frontend.pump_until(lambda: 1 in frontend.rejected)
    assert frontend.rejected[1].reason == engine.REJECT_REASON_NO_WORKERS

    def is_told() -> bool:
        supervisor.pump()
        return any("no such folder" in s.not_ready_reason for s in supervisor.snapshots)

    frontend.pump_until(is_told)
    assert any("no such folder" in s.not_accepting_reason for s in frontend.statuses)
    assert supervisor.group_states[-1].permanent_error == "--model: no such folder"
