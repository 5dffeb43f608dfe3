"""A real Envoy, configured as deploy/envoy.yaml says, before three real replicas."""

import signal
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import yaml

from octavo.v1.inference_pb2 import GenerateRequest, StreamChunk
from octavo.v1.inference_pb2_grpc import InferenceServiceStub
from tests.e2e.calls import collect, connected, generation
from tests.e2e.replica import Replica, running_replica, wait_until
from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import make_tiny_checkpoint
from tests.fakes.hash_tokens import expected_tokens
from tests.free_ports import free_ports
from tests.operations.conftest import ROOT
from tools.fetch_wheel_programs import ENVOY

FILE = ROOT / "deploy/envoy.yaml"
PROMPT = [4, 5, 6]
NAMES = ("r0", "r1", "r2")
LONG, SHORT = 200, 3


def configuration(replicas: list[Replica], *, listen: int, admin: int) -> dict[str, Any]:
    """The file's configuration with addresses in place of a name; nothing else is changed."""
    config: dict[str, Any] = yaml.safe_load(FILE.read_text())
    local = {"address": "127.0.0.1", "port_value": admin}
    config["admin"]["address"]["socket_address"] = local
    resources = config["static_resources"]
    resources["listeners"][0]["address"]["socket_address"] = local | {"port_value": listen}
    resources["clusters"][0]["type"] = "STATIC"
    ports = [int(replica.target.rpartition(":")[2]) for replica in replicas]
    resources["clusters"][0]["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
        {"endpoint": {"address": {"socket_address": local | {"port_value": port}}}}
        for port in ports
    ]
    return config


class Envoy:
    """A running Envoy."""

    def __init__(self, *, listen: int, admin: int, log: Path) -> None:
        self.target = f"127.0.0.1:{listen}"
        self._admin = admin
        self._log = log

    def num_healthy(self) -> int:
        """Replicas that get new calls."""
        try:
            url = f"http://127.0.0.1:{self._admin}/clusters"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return sum(line.endswith("::healthy") for line in answer.read().decode().split())
        except (urllib.error.URLError, ConnectionError):
            return 0

    def wait_healthy(self, count: int) -> None:
        wait_until(lambda: self.num_healthy() == count, limit_s=30.0, otherwise=self._log.read_text)


@contextmanager
def running_envoy(replicas: list[Replica], folder: Path) -> Iterator[Envoy]:
    listen, admin = free_ports(2)
    file, log = folder / "envoy.yaml", folder / "envoy.log"
    file.write_text(yaml.safe_dump(configuration(replicas, listen=listen, admin=admin)))
    flags = ["-c", str(file), "--concurrency", "1", "--use-dynamic-base-id", "-l", "warning"]
    with log.open("wb") as output:
        process = subprocess.Popen([str(ENVOY.path), *flags], stdout=output, stderr=output)
        try:
            yield Envoy(listen=listen, admin=admin, log=log)
        finally:
            process.terminate()
            process.wait(timeout=20)


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[list[Replica]]:
    """Three replicas; a step takes 10 ms."""
    make_tiny_checkpoint(tmp_path / "model", family="qwen3")
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                running_replica(
                    tmp_path / "model",
                    flags=["--replica", name],
                    hash_worker=["--step-ms", "10"],
                    wait=False,
                )
            )
            for name in NAMES
        ]
        for replica in started:
            replica.wait_ready()
        yield started


@pytest.fixture
def envoy(replicas: list[Replica], tmp_path: Path) -> Iterator[Envoy]:
    """An Envoy that has found all replicas healthy."""
    with running_envoy(replicas, tmp_path) as started:
        started.wait_healthy(len(NAMES))
        yield started


def serve_one(stub: InferenceServiceStub, num_tokens: int) -> str:
    """One call, its every token checked; returns the replica that took it."""
    wanted = generation(PROMPT, max_tokens=num_tokens)
    call = stub.Generate(GenerateRequest(generation=wanted), timeout=60)
    chunks: list[StreamChunk] = [response.chunk for response in call]
    [output] = collect(iter(chunks))
    assert output.token_ids == expected_tokens(PROMPT, num_tokens, vocab_size=NUM_IDS)
    return str(chunks[0].start.replica)


def takers(stub: InferenceServiceStub, count: int) -> Counter[str]:
    """Who takes calls that come one after another."""
    return Counter(serve_one(stub, SHORT) for _ in range(count))


def test_envoy_accepts_the_file_as_it_is() -> None:
    done = subprocess.run(
        [str(ENVOY.path), "--mode", "validate", "-l", "warning", "-c", str(FILE)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "eprecated" not in done.stderr


def test_calls_of_one_channel_reach_every_replica(envoy: Envoy) -> None:
    """Scenario LB-01."""
    with connected(envoy.target) as stub:
        taken = takers(stub, 30)
    assert set(taken) == set(NAMES)
    assert min(taken.values()) >= 8


def test_a_draining_replica_gets_no_new_calls_and_ends_its_own(
    envoy: Envoy, replicas: list[Replica]
) -> None:
    with connected(envoy.target) as stub, ThreadPoolExecutor(6) as pool:
        running: list[Future[str]] = [pool.submit(serve_one, stub, LONG) for _ in range(6)]
        wait_until(lambda: all(num_live(replica) == 2 for replica in replicas), limit_s=10)
        replicas[0].supervisor.send_signal(signal.SIGTERM)
        # refused as UNAVAILABLE before Envoy's health check has noticed, and tried elsewhere
        assert set(takers(stub, 10)) == {"r1", "r2"}
        assert Counter(one.result(60) for one in running) == dict.fromkeys(NAMES, 2)
    assert replicas[0].supervisor.wait(timeout=20) == 0


def num_live(replica: Replica) -> int:
    """Requests that the replica knows of."""
    _, text = replica.get("/metrics")
    lines = [line for line in text.splitlines() if line.startswith("octavo_num_requests_live ")]
    return int(float(lines[0].split()[1])) if lines else 0


def test_the_death_of_a_replica_fails_no_new_call(envoy: Envoy, replicas: list[Replica]) -> None:
    """Scenario LB-02."""
    with connected(envoy.target) as stub:
        assert set(takers(stub, 6)) == set(NAMES)
        supervisor = psutil.Process(replicas[0].supervisor.pid)
        children = supervisor.children(recursive=True)
        supervisor.kill()
        # what a frontend takes before it follows its supervisor is no new call
        assert not psutil.wait_procs(children, timeout=20)[1]
        assert set(takers(stub, 20)) == {"r1", "r2"}


def test_without_any_replica_a_call_fails_at_once(envoy: Envoy, replicas: list[Replica]) -> None:
    for replica in replicas:
        replica.end()
    envoy.wait_healthy(0)
    with connected(envoy.target) as stub, pytest.raises(grpc.RpcError) as failed:
        serve_one(stub, SHORT)
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
