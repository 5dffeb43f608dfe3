"""The worker supervisor and its ranks as real processes, with hash tokens and a scripted core."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from octavo.internal.v1 import control_pb2, step_pb2
from tests.fakes.hash_tokens import expected_tokens
from tests.fakes.plan_writer import Chunk, PlanWriter
from tests.fakes.scripted_core import NothingCame, ScriptedCore
from tests.fakes.worker_process import LIMIT_S, ROOT, is_gone, running_worker, wait_until

PROMPT = [3, 1, 4, 1, 5]
VOCAB = ["--vocab-size", "50", "--block-size", "4", "--num-kv-blocks", "40"]


@pytest.fixture
def core(tmp_path: Path) -> Iterator[ScriptedCore]:
    with ScriptedCore(tmp_path) as scripted:
        yield scripted


def stream(core: ScriptedCore, writer: PlanWriter, *, num_tokens: int) -> list[int]:
    """Greedy tokens of the prompt in slot 0."""
    start = writer.start(0, num_prompt_tokens=len(PROMPT))
    blocks = [(0, block) for block in range(1, 11)]
    chunk = Chunk(slot=0, tokens=PROMPT, position=0, start=start)
    tokens = core.run(writer.plan(chunks=[chunk], new_blocks=blocks))
    while len(tokens) < num_tokens:
        tokens += core.run(writer.plan(steady=[0]))
    return tokens


def running(state: control_pb2.GroupState) -> bool:
    return state.group_incarnation != 0


def test_a_stream_through_real_processes(tmp_path: Path, core: ScriptedCore) -> None:
    with running_worker(tmp_path, VOCAB) as worker:
        [hello] = core.hellos()
        state = core.state(running)
        assert state.group_incarnation == hello.group_incarnation
        assert list(state.pids) == [hello.pid]
        assert (hello.vocab_size, hello.num_blocks) == (50, 40)
        tokens = stream(core, core.welcome([hello]), num_tokens=20)
        assert tokens == expected_tokens(PROMPT, 20, vocab_size=50)
        assert worker.stop() == 0
        assert not list((tmp_path / "tmp").iterdir())


def test_two_ranks_launch_the_same_steps_and_one_answers(
    tmp_path: Path, core: ScriptedCore
) -> None:
    with running_worker(tmp_path, [*VOCAB, "--tensor-parallel-size", "2"]) as worker:
        hellos = core.hellos(ranks=[0, 1])
        assert hellos[0].group_incarnation == hellos[1].group_incarnation
        assert hellos[0].model_digest == hellos[1].model_digest
        tokens = stream(core, core.welcome(hellos), num_tokens=8)
        assert tokens == expected_tokens(PROMPT, 8, vocab_size=50)
        core.send(step_pb2.CoreToRank(reset=step_pb2.Reset(epoch=core.epoch)))
        again = core.hellos(ranks=[0, 1])
        assert [hello.last_step for hello in again] == [8, 8]
        assert worker.stop() == 0


def test_a_dead_rank_takes_the_group_with_it_and_a_new_one_starts(
    tmp_path: Path, core: ScriptedCore
) -> None:
    with running_worker(tmp_path, [*VOCAB, "--tensor-parallel-size", "2"]):
        first = core.hellos(ranks=[0, 1])
        os.kill(first[1].pid, signal.SIGKILL)
        second = core.hellos(ranks=[0, 1])
        assert second[0].group_incarnation != first[0].group_incarnation
        assert not {hello.pid for hello in first} & {hello.pid for hello in second}
        assert not psutil.pid_exists(first[0].pid)
        state = core.state(lambda s: s.group_incarnation == second[0].group_incarnation)
        assert state.num_restarts == 1
        assert state.last_death == "rank 1 ended with signal 9"
        tokens = stream(core, core.welcome(second), num_tokens=4)
        assert tokens == expected_tokens(PROMPT, 4, vocab_size=50)


def test_the_core_can_kill_the_group_it_names_and_no_other(
    tmp_path: Path, core: ScriptedCore
) -> None:
    with running_worker(tmp_path, [*VOCAB, "--hang-at-step", "2"]):
        [first] = core.hellos()
        writer = core.welcome([first])
        with pytest.raises(NothingCame):
            stream_with_limit(core, writer)
        other = control_pb2.KillGroup(group_incarnation=first.group_incarnation ^ 1)
        core.order(control_pb2.ControlMessage(kill_group=other))
        with pytest.raises(NothingCame):
            core.hellos(limit_s=0.5)
        kill = control_pb2.KillGroup(group_incarnation=first.group_incarnation, reason="stuck")
        core.order(control_pb2.ControlMessage(kill_group=kill))
        [second] = core.hellos()
        assert second.group_incarnation != first.group_incarnation
        state = core.state(lambda s: s.num_restarts == 1)
        assert state.last_death == "killed by the core: stuck"
        # the fault is armed at the first start only
        tokens = stream(core, core.welcome([second]), num_tokens=4)
        assert tokens == expected_tokens(PROMPT, 4, vocab_size=50)


def stream_with_limit(core: ScriptedCore, writer: PlanWriter) -> None:
    """Two steps, the second of which does not come back."""
    stream(core, writer, num_tokens=1)
    core.send_plan(writer.plan(steady=[0]))
    core.result(limit_s=0.5)


def test_the_reason_of_a_crash_is_told(tmp_path: Path, core: ScriptedCore) -> None:
    with running_worker(tmp_path, [*VOCAB, "--raise-at-step", "1"]):
        writer = core.welcome(core.hellos())
        start = Chunk(slot=0, tokens=PROMPT, position=0, start=writer.start(0))
        core.send_plan(writer.plan(chunks=[start], new_blocks=[(0, 1), (0, 2)]))
        assert core.next("fatal")[1].fatal.message == "RuntimeError: injected at step 1"
        state = core.state(lambda s: bool(s.last_death))
        assert state.last_death == ("rank 0 ended with status 1: RuntimeError: injected at step 1")


def test_an_exception_in_one_rank_alone_ends_the_group(tmp_path: Path, core: ScriptedCore) -> None:
    flags = [*VOCAB, "--tensor-parallel-size", "2", "--raise-at-step", "2", "--fault-rank", "1"]
    with running_worker(tmp_path, flags):
        first = core.hellos(ranks=[0, 1])
        stream(core, core.welcome(first), num_tokens=2)
        second = core.hellos(ranks=[0, 1])
        assert second[0].group_incarnation != first[0].group_incarnation
        assert core.fatals[0].message == "RuntimeError: injected at step 2"


def test_what_no_restart_can_mend_is_told_and_not_tried_again(
    tmp_path: Path, core: ScriptedCore
) -> None:
    missing = tmp_path / "nowhere"
    with running_worker(tmp_path, ["--model", str(missing)]) as worker:
        state = core.state(lambda s: bool(s.permanent_error))
        assert str(missing / "config.json") in state.permanent_error
        assert "--model" in state.permanent_error
        assert (state.group_incarnation, state.num_restarts, state.backoff_ms) == (0, 0, 0)
        with pytest.raises(NothingCame):
            core.state(lambda s: running(s) or s.num_restarts > 0, limit_s=1.5)
        assert worker.stop() == 78


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        (["--block-size", "3"], "--block-size must be a power of two, got 3"),
        (["--num-kv-blocks", "1"], "--num-kv-blocks must be 0 or at least 2"),
        (["--num-kv-blocks", "8", "--kv-cache-bytes", "9"], "exclude each other"),
    ],
)
def test_a_wrong_setting_ends_the_worker_with_one_line(
    tmp_path: Path, flags: list[str], rule: str
) -> None:
    with running_worker(tmp_path, ["--model", "x", *flags], module="worker_svc") as worker:
        assert worker.wait() == 78
        assert rule in worker.log
        assert len(worker.log.splitlines()) == 1


def test_a_killed_supervisor_leaves_no_rank(tmp_path: Path, core: ScriptedCore) -> None:
    with running_worker(tmp_path, [*VOCAB, "--tensor-parallel-size", "2"]) as worker:
        core.hellos(ranks=[0, 1])
        ranks = worker.ranks()
        assert len(ranks) == 2
        worker.process.kill()
        wait_until(lambda: all(map(is_gone, ranks)))


def test_a_killed_supervisor_leaves_no_rank_that_just_begins(tmp_path: Path) -> None:
    with running_worker(tmp_path, [*VOCAB, "--tensor-parallel-size", "2"]) as worker:
        wait_until(lambda: len(worker.ranks()) == 2)
        ranks = worker.ranks()
        worker.process.kill()
        wait_until(lambda: all(map(is_gone, ranks)))


def test_a_killed_supervisor_leaves_no_rank_that_hangs(tmp_path: Path, core: ScriptedCore) -> None:
    with running_worker(tmp_path, [*VOCAB, "--hang-at-step", "1"]) as worker:
        writer = core.welcome(core.hellos())
        start = Chunk(slot=0, tokens=PROMPT, position=0, start=writer.start(0))
        core.send_plan(writer.plan(chunks=[start], new_blocks=[(0, 1), (0, 2)]))
        ranks = worker.ranks()
        worker.process.kill()
        wait_until(lambda: all(map(is_gone, ranks)))


def test_the_folder_of_a_killed_supervisor_is_swept_by_the_next(
    tmp_path: Path, core: ScriptedCore
) -> None:
    with running_worker(tmp_path, VOCAB) as worker:
        core.hellos()
        worker.process.kill()
        worker.wait()
    [stale] = (tmp_path / "tmp").iterdir()
    with running_worker(tmp_path, VOCAB):
        core.hellos()
        assert not stale.exists()
        assert len(list((tmp_path / "tmp").iterdir())) == 1


def test_a_stopped_supervisor_kills_a_rank_that_does_not_end(
    tmp_path: Path, core: ScriptedCore
) -> None:
    with running_worker(tmp_path, [*VOCAB, "--hang-at-step", "1"]) as worker:
        writer = core.welcome(core.hellos())
        start = Chunk(slot=0, tokens=PROMPT, position=0, start=writer.start(0))
        core.send_plan(writer.plan(chunks=[start], new_blocks=[(0, 1), (0, 2)]))
        with pytest.raises(NothingCame):
            core.result(limit_s=0.3)
        ranks = worker.ranks()
        assert worker.stop() == 0
        assert all(map(is_gone, ranks))


def test_ctrl_c_ends_the_worker_without_a_trace(tmp_path: Path, core: ScriptedCore) -> None:
    with running_worker(tmp_path, VOCAB) as worker:
        core.hellos()
        ranks = worker.ranks()
        worker.process.send_signal(signal.SIGINT)
        assert worker.wait() == 0
        assert all(map(is_gone, ranks))
        assert "Traceback" not in worker.log


def test_a_shutdown_from_the_core_ends_the_worker(tmp_path: Path, core: ScriptedCore) -> None:
    with running_worker(tmp_path, VOCAB) as worker:
        core.hellos()
        shutdown = control_pb2.Shutdown(reason="the replica ends")
        core.order(control_pb2.ControlMessage(shutdown=shutdown))
        assert worker.wait() == 0


def test_a_worker_outlives_its_core_and_serves_the_next(tmp_path: Path) -> None:
    with running_worker(tmp_path, VOCAB):
        with ScriptedCore(tmp_path) as first:
            [hello] = first.hellos()
            first.state(running)
            stream(first, first.welcome([hello]), num_tokens=3)
        with ScriptedCore(tmp_path, incarnation=78) as second:
            [again] = second.hellos()
            assert again.pid == hello.pid
            assert second.state(running).group_incarnation == hello.group_incarnation
            tokens = stream(second, second.welcome([again]), num_tokens=3)
            assert tokens == expected_tokens(PROMPT, 3, vocab_size=50)


def test_a_worker_may_start_before_its_run_folder_exists(tmp_path: Path) -> None:
    run_dir = tmp_path / "later"
    flags = [*VOCAB, "--run-dir", str(run_dir)]
    with running_worker(tmp_path, flags) as worker:
        wait_until(lambda: bool(worker.ranks()))
        run_dir.mkdir()
        with ScriptedCore(run_dir) as late:
            assert late.hellos()[0].reason == "start"


def test_an_orphan_ends_at_once(tmp_path: Path) -> None:
    environment = {**os.environ, "OCTAVO_PARENT_PID": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", "worker_svc", "--run-dir", str(tmp_path), "--model", "x"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr == "the process that started this one is gone\n"
