"""`/metrics` of real processes against what their clients saw."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from octavo.v1 import inference_pb2 as api
from octavo.v1.inference_pb2_grpc import InferenceServiceStub
from tests.e2e.calls import connected, generation
from tests.e2e.replica import Replica, running_replica
from tests.e2e.scraped import Scrape, Series, scrape, scraped_when
from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import make_tiny_checkpoint

NUM_REQUESTS, NUM_TOKENS = 24, 40
FIRST_TOKENS = "octavo_time_to_first_token_seconds"
HANDLED = "octavo_grpc_server_handled_total"
ENDS = "octavo_e2e_request_latency_seconds_count"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), family="qwen3")


@pytest.fixture
def replica(model: Path) -> Iterator[Replica]:
    """Two frontends, and a cache that holds about a quarter of the test's work."""
    worker = ["--num-kv-blocks", "40", "--step-ms", "2"]
    with running_replica(model, flags=["--frontends", "2"], hash_worker=worker) as started:
        yield started


@dataclass(frozen=True)
class Seen:
    """What a client saw of one request."""

    first_token_s: float
    total_s: float
    usage: api.Usage


def timed(target: str, wanted: api.Generation) -> Seen:
    """A request on a connection of its own, so that all frontends get some."""
    with connected(target) as stub:
        began, first_token_s, usage = time.monotonic(), 0.0, api.Usage()
        for response in stub.Generate(api.GenerateRequest(generation=wanted), timeout=60):
            usage = response.chunk.usage
            if not first_token_s and usage.completion_tokens:
                first_token_s = time.monotonic() - began
        return Seen(first_token_s, time.monotonic() - began, usage)


def random_prompts(num_prompts: int) -> list[list[int]]:
    numbers = random.Random(7)
    return [numbers.choices(range(NUM_IDS), k=numbers.randint(20, 60)) for _ in range(num_prompts)]


def is_all_told(now: Scrape, num_calls: int, num_tokens: int) -> bool:
    """Whether every process has reported what it did for so many calls, of so many tokens each."""
    is_core_told = now.value("octavo_generation_tokens_total") == num_calls * num_tokens
    return is_core_told and now.total(HANDLED) == num_calls


def begun(stub: InferenceServiceStub, wanted: api.Generation) -> grpc.Call:
    """A call whose first token has come."""
    call = stub.Generate(api.GenerateRequest(generation=wanted), timeout=60)
    while not next(call).chunk.outputs:
        pass
    return call


def test_counts_and_times_are_those_that_clients_saw(replica: Replica) -> None:
    """Scenarios MET-01 and MET-02, with preemptions."""
    wanted = [generation(prompt, max_tokens=NUM_TOKENS) for prompt in random_prompts(NUM_REQUESTS)]
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        seen = list(pool.map(lambda one: timed(replica.target, one), wanted))
    got = scraped_when(replica, lambda now: is_all_told(now, NUM_REQUESTS, NUM_TOKENS))

    prompt_tokens = sum(len(one.prompt.token_ids.ids) for one in wanted)
    assert sum(one.usage.prompt_tokens for one in seen) == prompt_tokens
    assert got.value("octavo_prompt_tokens_total") == prompt_tokens
    assert got.value("octavo_prefix_cache_queries_total") == prompt_tokens
    assert got.value(ENDS) == NUM_REQUESTS
    assert got.value("octavo_num_preemptions_total") > 0
    assert got.value("octavo_replayed_tokens_total") > 0
    # what preempted sequences find of their own is no hit: random prompts share nothing
    cached_tokens = sum(one.usage.cached_tokens for one in seen)
    assert got.value("octavo_prefix_cache_hits_total") == cached_tokens == 0

    check_times(got, seen)
    ends = got.value("octavo_request_success_total", finished_reason="length")
    assert ends == NUM_REQUESTS
    assert got.value("octavo_grpc_server_started_total", grpc_method="Generate") == NUM_REQUESTS
    handled = {"grpc_method": "Generate", "grpc_code": "OK"}
    assert got.value("octavo_grpc_server_handled_total", **handled) == NUM_REQUESTS


def check_times(got: Scrape, seen: list[Seen]) -> None:
    """Every request's times are part of what its client waited."""
    first_s = got.value(f"{FIRST_TOKENS}_sum")
    assert got.value(f"{FIRST_TOKENS}_count") == len(seen)
    assert 0 < first_s <= sum(one.first_token_s for one in seen)
    whole_s = got.value("octavo_e2e_request_latency_seconds_sum")
    assert first_s < whole_s <= sum(one.total_s for one in seen)
    for part in ("queue", "prefill", "decode"):
        assert got.value(f"octavo_request_{part}_time_seconds_count") == len(seen), part
    # the core's clock reading of an arrival may be a turn old: its part is left out here
    measured = ("prefill", "decode")
    parts_s = sum(got.value(f"octavo_request_{part}_time_seconds_sum") for part in measured)
    assert 0 < parts_s <= whole_s


def test_requests_that_end_early_count_too(replica: Replica) -> None:
    """Scenario MET-02: first tokens count for those who got one, ends for all."""
    with connected(replica.target) as stub:
        for _ in range(3):
            begun(stub, generation([1, 2, 3], max_tokens=400)).cancel()
        with pytest.raises(grpc.RpcError):
            stub.GenerateUnary(
                api.GenerateUnaryRequest(generation=generation([4, 5], max_tokens=400)), timeout=0.3
            )
        got = scraped_when(replica, lambda now: now.total(HANDLED) == 4)
    assert got.value(ENDS) == 4
    assert got.value("octavo_requests_aborted_total", cause="client_left") == 3
    assert got.value("octavo_requests_aborted_total", cause="deadline") == 1
    handled = {"grpc_method": "Generate", "grpc_code": "CANCELLED"}
    assert got.value("octavo_grpc_server_handled_total", **handled) == 3
    assert got.value(f"{FIRST_TOKENS}_count") >= 3
    assert got.total("octavo_request_success_total") == 0


def test_no_name_that_a_client_chooses_makes_a_series(replica: Replica) -> None:
    """Scenario MET-05: random ids, models and tenants, half of them refused."""
    numbers = random.Random(5)

    def call(stub: InferenceServiceStub, *, is_known: bool) -> None:
        wanted = generation([1, 2], max_tokens=2, request_id=f"id-{numbers.getrandbits(64):x}")
        if not is_known:
            wanted.model = f"model-{numbers.getrandbits(64):x}"
        request = api.GenerateUnaryRequest(generation=wanted)
        metadata = (("octavo-tenant", f"tenant-{numbers.getrandbits(64):x}"),)
        if is_known:
            stub.GenerateUnary(request, timeout=60, metadata=metadata)
            return
        with pytest.raises(grpc.RpcError) as caught:
            stub.GenerateUnary(request, timeout=60, metadata=metadata)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    with connected(replica.target) as stub:
        for is_known in (True, False):
            call(stub, is_known=is_known)
        before = scraped_when(replica, lambda now: is_all_told(now, 2, 1))
        for number in range(300):
            call(stub, is_known=number % 2 == 0)
        after = scraped_when(replica, lambda now: is_all_told(now, 302, 1))
    assert after.values.keys() == before.values.keys()


@pytest.mark.chaos
@pytest.mark.parametrize("killed", ["scheduler_svc.engine", "frontend-0"])
def test_a_restarted_process_lowers_no_counter(replica: Replica, killed: str) -> None:
    """Scenario MET-04, seen by somebody who scrapes all the while."""
    wanted = [generation(prompt, max_tokens=5) for prompt in random_prompts(6)]
    for one in wanted:
        timed(replica.target, one)
    last = scraped_when(replica, lambda now: is_all_told(now, 6, 5))
    before = last
    process = replica.process(killed)
    fallen: list[Series] = []
    is_over = threading.Event()

    def watch() -> None:
        nonlocal last
        while not is_over.wait(0.05):
            now = scrape(replica)
            fallen.extend(
                key for key in last.growing if now.values.get(key, 0.0) < last.values[key]
            )
            last = now

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            process.kill()
            process.wait()
            replica.wait_ready()
            for one in wanted:
                timed(replica.target, one)
            after = scraped_when(replica, lambda now: is_all_told(now, 12, 5))
        finally:
            is_over.set()
        watching.result()
    assert fallen == []
    assert after.value(ENDS) == 12
    assert before.growing <= after.values.keys()
