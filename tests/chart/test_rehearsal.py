"""The rendered pod's own commands, probes and hooks, run here: starts, kills, ends with streams."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import grpc
import pytest

from octavo.v1 import inference_pb2 as api
from tests.chart.conftest import Render
from tests.chart.local_pod import LocalPod
from tests.chart.rehearsed_pod import local_pod, pod_ports
from tests.e2e.calls import Received, collect, connected, generation, stream
from tests.e2e.replica import wait_until
from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.hash_tokens import expected_tokens

PROMPT, NUM_TOKENS = [1, 2, 3], 120


@pytest.fixture
def ports() -> dict[str, int]:
    """Of a pod that shares this machine with others."""
    return pod_ports(1)[0]


@pytest.fixture
def pod(render: Render, ports: dict[str, int]) -> Iterator[LocalPod]:
    """A pod that is ready."""
    with local_pod(render, ports) as started:
        started.start()
        started.wait_ready()
        yield started


@pytest.fixture
def target(ports: dict[str, int]) -> str:
    return f"127.0.0.1:{ports['grpc']}"


class Stream:
    """A stream read on a thread; `begun` is set at its first chunk."""

    def __init__(self, target: str) -> None:
        self.begun = threading.Event()
        self.ended_at = 0.0
        self._pool = ThreadPoolExecutor(1)
        self._result: Future[list[Received]] = self._pool.submit(self._read, target)

    def wait_begun(self) -> None:
        assert self.begun.wait(30), "no first chunk"

    def tokens(self) -> list[int]:
        """All tokens, once it has ended."""
        [output] = self._result.result(60)
        self._pool.shutdown()
        return output.token_ids

    def _read(self, target: str) -> list[Received]:
        wanted = generation(PROMPT, max_tokens=NUM_TOKENS)
        with connected(target) as stub:
            call = stub.Generate(api.GenerateRequest(generation=wanted), timeout=60)
            chunks = (response.chunk for response in call)
            received = collect(self._noting(chunks))
        self.ended_at = time.monotonic()
        return received

    def _noting(self, chunks: Iterator[api.StreamChunk]) -> Iterator[api.StreamChunk]:
        for chunk in chunks:
            self.begun.set()
            yield chunk


def all_tokens() -> list[int]:
    return list(expected_tokens(PROMPT, NUM_TOKENS, seed=0, temperature=0.0, vocab_size=NUM_IDS))


def test_a_terminated_pod_ends_its_streams_first_and_in_time(pod: LocalPod, target: str) -> None:
    """Scenarios SIG-01, SIG-02."""
    running = Stream(target)
    running.wait_begun()
    pod.terminate()
    assert running.tokens() == all_tokens()
    scheduler, worker = pod.containers["scheduler"], pod.containers["worker"]
    assert not scheduler.was_killed
    assert not worker.was_killed
    assert scheduler.process is not None
    assert scheduler.process.returncode == 0
    # the worker is told to end only when nobody needs it any more
    assert worker.told_to_end_at > running.ended_at


def test_a_draining_pod_is_alive_but_not_ready_and_takes_nothing_new(
    pod: LocalPod, target: str
) -> None:
    running = Stream(target)
    running.wait_begun()
    scheduler = pod.containers["scheduler"]
    ending = threading.Thread(target=pod.terminate)
    ending.start()
    try:
        wait_until(lambda: not scheduler.probe("readinessProbe"), limit_s=20)
        assert scheduler.probe("livenessProbe")
        with connected(target) as stub, pytest.raises(grpc.RpcError) as refused:
            stream(stub, generation(PROMPT, max_tokens=1))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        ending.join()
    assert running.tokens() == all_tokens()


def test_a_stream_survives_the_death_of_the_worker_container(pod: LocalPod, target: str) -> None:
    running = Stream(target)
    running.wait_begun()
    pod.kill("worker")
    assert pod.containers["scheduler"].probe("livenessProbe")
    pod.restart("worker")
    assert running.tokens() == all_tokens()


def test_a_scheduler_container_that_was_killed_comes_back_on_the_same_volumes(
    pod: LocalPod, target: str
) -> None:
    """Its sockets and lock are still in the run volume, and its worker still runs."""
    pod.kill("scheduler")
    assert not pod.containers["scheduler"].probe("readinessProbe")
    pod.restart("scheduler")
    pod.wait_ready()
    with connected(target) as stub:
        [output] = stream(stub, generation(PROMPT, max_tokens=NUM_TOKENS))
    assert output.token_ids == all_tokens()
