"""A rolling update of two rehearsed pods under load: not one call fails."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from octavo.v1.inference_pb2 import GenerateRequest
from octavo.v1.inference_pb2_grpc import InferenceServiceStub
from tests.chart.conftest import Render
from tests.chart.local_pod import LocalPod
from tests.chart.rehearsed_pod import local_pod, pod_ports
from tests.e2e.calls import collect, generation
from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.hash_tokens import expected_tokens

# What docs/operations.md advises to clients that balance; a refused call goes to the other pod.
SERVICE_CONFIG = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "healthCheckConfig": {"serviceName": "octavo.v1.InferenceService"},
    "methodConfig": [
        {
            "name": [{"service": "octavo.v1.InferenceService"}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
}
NUM_CLIENTS, NUM_TOKENS = 3, 40


@pytest.fixture
def pods(render: Render) -> Iterator[list[tuple[LocalPod, int]]]:
    """Two pods that are ready, and their inference ports."""
    ports = pod_ports(2)
    with local_pod(render, ports[0]) as first, local_pod(render, ports[1]) as second:
        for pod in (first, second):
            pod.start()
        for pod in (first, second):
            pod.wait_ready()
        yield [(first, ports[0]["grpc"]), (second, ports[1]["grpc"])]


@pytest.fixture
def stub(pods: list[tuple[LocalPod, int]]) -> Iterator[InferenceServiceStub]:
    """A plain client that balances over both pods."""
    addresses = ",".join(f"127.0.0.1:{port}" for _, port in pods)
    options = [
        ("grpc.service_config", json.dumps(SERVICE_CONFIG)),
        # the default pauses after a lost connection are made for the internet
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 500),
    ]
    with grpc.insecure_channel(f"ipv4:{addresses}", options) as channel:
        yield InferenceServiceStub(channel)


def calls_until(over: threading.Event, stub: InferenceServiceStub, prompt: list[int]) -> int:
    """Streams one answer after another and checks every token; returns how many."""
    expected = expected_tokens(prompt, NUM_TOKENS, vocab_size=NUM_IDS)
    num_calls = 0
    while not over.is_set():
        wanted = generation(prompt, max_tokens=NUM_TOKENS)
        call = stub.Generate(GenerateRequest(generation=wanted), timeout=60)
        [output] = collect(response.chunk for response in call)
        assert output.token_ids == expected
        num_calls += 1
    return num_calls


def test_a_rolling_update_under_load_fails_no_call(
    pods: list[tuple[LocalPod, int]], stub: InferenceServiceStub
) -> None:
    """Scenario SIG-02: one pod at a time ends with its streams and comes back."""
    over = threading.Event()
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        clients = [pool.submit(calls_until, over, stub, [7, 8, i]) for i in range(NUM_CLIENTS)]
        try:
            for pod, _ in pods:
                pod.terminate()
                assert not any(one.was_killed for one in pod.containers.values())
                pod.start()
                pod.wait_ready()
        finally:
            over.set()
        assert all(client.result(60) > 1 for client in clients)
