"""Starting, stopping and dying: nothing is left behind, and the next start finds a clean place."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from octavo.v1 import inference_pb2 as api
from scheduler_svc.supervisor.run_folder import open_run_folder, sweep_stale_folders
from tests.e2e.calls import connected, generation, stream, stream_all
from tests.e2e.replica import ROOT, Replica, running_replica, wait_until
from tests.fakes.checkpoints import make_tiny_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_tiny_checkpoint(folder, family="qwen3")
    return folder


@pytest.fixture
def replica(model: Path) -> Iterator[Replica]:
    with running_replica(model, hash_worker=[]) as started:
        yield started


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_leaves_nothing_behind(replica: Replica, number: signal.Signals) -> None:
    children = psutil.Process(replica.supervisor.pid).children(recursive=True)
    with connected(replica.target) as stub:
        stream(stub, generation([1, 2, 3], max_tokens=4))
    replica.supervisor.send_signal(number)
    assert replica.supervisor.wait(timeout=20) == 0
    assert [child for child in children if child.is_running()] == []
    assert [entry.name for entry in replica.run_dir.iterdir()] == ["lock"]
    assert "Traceback" not in replica.log()


def test_running_streams_finish_during_a_drain(model: Path) -> None:
    with running_replica(model, hash_worker=["--step-ms", "20"]) as replica:
        with connected(replica.target) as stub:
            call = stub.Generate(
                api.GenerateRequest(generation=generation([5, 6], max_tokens=100)), timeout=60
            )
            chunks = [next(iter(call)).chunk]
            replica.supervisor.send_signal(signal.SIGTERM)
            chunks += [response.chunk for response in call]
        num_tokens = sum(len(delta.token_ids) for chunk in chunks for delta in chunk.outputs)
        assert num_tokens == 100
        assert replica.supervisor.wait(timeout=20) == 0


def test_a_killed_supervisor_takes_every_process_with_it(model: Path) -> None:
    with running_replica(model, flags=["--load-format", "random"]) as replica:
        processes = replica.processes()
        assert len(processes) >= 5  # supervisor, core, frontend, worker supervisor, rank
        replica.supervisor.kill()
        wait_until(
            lambda: not any(p.is_running() and p.status() != "zombie" for p in processes),
            limit_s=10,
            otherwise=lambda: f"left: {[p for p in processes if p.is_running()]}",
        )


def test_a_stale_run_folder_is_swept_and_a_living_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    living = open_run_folder("")
    stale = open_run_folder("")
    os.close(stale.lock)  # as the system does when its owner dies
    assert sweep_stale_folders(tmp_path) == [stale.path]
    assert living.path.is_dir()
    living.remove()
    assert list(tmp_path.iterdir()) == []


def _serve_expecting_failure(*flags: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "scheduler_svc", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"},
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("flag", ["--port", "--admin-port", "--metrics-port"])
def test_a_taken_port_is_an_error_that_names_the_flag(model: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags = {"--port": "0", "--admin-port": "0", "--metrics-port": "0", flag: port}
        arguments = [word for pair in flags.items() for word in pair]
        status, said = _serve_expecting_failure("--model", str(model), *arguments)
    assert status == 2
    assert f"{flag} {port}" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--model", "/nowhere/at-all"], "/nowhere/at-all"),
        (["--model", "some/unknown-repository"], "octavo models pull"),
        (["--block-size", "24"], "--block-size"),
        (["--num-kv-blocks", "9", "--kv-cache-bytes", "9"], "exclude each other"),
        (["--gpu-memory-utilization", "nan"], "--gpu-memory-utilization"),
        (["--frontends", "0"], "--frontends"),
    ],
)
def test_wrong_settings_stop_the_start_with_one_line(flags: list[str], named: str) -> None:
    status, said = _serve_expecting_failure(*flags)
    assert status == 2
    assert named in said
    assert "Traceback" not in said


def test_a_corrupt_checkpoint_ends_the_replica_with_the_file_named(
    model: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in model.iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with running_replica(broken, wait=False) as replica:
        assert replica.supervisor.wait(timeout=60) == 1
        assert "model.safetensors" in replica.log()


def test_four_replicas_start_at_once(model: Path) -> None:
    with ExitStack() as stack:
        replicas = [
            stack.enter_context(running_replica(model, hash_worker=[], wait=False))
            for _ in range(4)
        ]
        for replica in replicas:
            replica.wait_ready()
        targets = {replica.target for replica in replicas}
        assert len(targets) == 4
        wanted = [generation([9, 8, 7], max_tokens=5)]
        answers = [stream_all(target, wanted)[0][0].token_ids for target in targets]
    assert answers == [answers[0]] * 4


def test_health_paths_follow_the_workers(replica: Replica) -> None:
    assert replica.get("/healthz") == (200, "ok\n")
    assert replica.get("/nothing")[0] == 404
    assert replica.workers is not None
    for process in psutil.Process(replica.workers.pid).children(recursive=True):
        process.kill()
    replica.workers.kill()
    wait_until(lambda: replica.get("/readyz")[0] == 503, limit_s=15)
    assert replica.get("/healthz")[0] == 200
