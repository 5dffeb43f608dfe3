"""Looking inside a replica of real processes: estimates, requests that live, an emptied cache."""

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from octavo.v1 import admin_pb2 as admin
from octavo.v1 import admin_pb2_grpc
from octavo.v1 import inference_pb2 as api
from octavo.v1.inference_pb2_grpc import InferenceServiceStub
from tests.e2e.calls import connected, generation, stream
from tests.e2e.replica import Replica, running_replica, wait_until
from tests.fakes.checkpoints import make_tiny_checkpoint

PROMPT = list(range(10, 90))


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    make_tiny_checkpoint(tmp_path, family="qwen3")
    slots = ["--max-num-seqs", "2"]
    with running_replica(tmp_path, flags=slots, hash_worker=[*slots, "--step-ms", "10"]) as started:
        yield started


def estimate(stub: InferenceServiceStub, ids: list[int]) -> api.EstimateResponse:
    request = api.EstimateRequest(prompt=api.Prompt(token_ids=api.TokenIds(ids=ids)))
    return stub.Estimate(request, timeout=20)


def test_a_full_batch_is_seen_from_both_ports(replica: Replica) -> None:
    with (
        connected(replica.target) as stub,
        grpc.insecure_channel(replica.addresses.admin) as channel,
    ):
        operator = admin_pb2_grpc.AdminServiceStub(channel)
        stream(stub, generation(PROMPT, max_tokens=4))
        cached = estimate(stub, PROMPT)
        assert (cached.prompt_tokens, cached.num_requests_ahead) == (80, 0)
        assert cached.cached_tokens >= 64

        names = ["one", "two", "three"]
        streams = [
            threading.Thread(
                target=stream,
                args=(stub, generation([n, n + 1], max_tokens=300, request_id=name)),
            )
            for n, name in enumerate(names, start=1)
        ]
        for each in streams:
            each.start()

        def states() -> dict[str, admin.RequestState]:
            request = admin.ListRequestsRequest(include_blocks=True)
            answer = operator.ListRequests(request, timeout=20)
            return {each.request_id: each for each in answer.requests}

        def phases() -> list[int]:
            return sorted(each.outputs[0].phase for each in states().values())

        full = [admin.OUTPUT_PHASE_WAITING, admin.OUTPUT_PHASE_DECODE, admin.OUTPUT_PHASE_DECODE]
        wait_until(lambda: phases() == full, limit_s=20, otherwise=lambda: str(states()))
        outputs = [each.outputs[0] for each in states().values()]
        waiting = [each for each in outputs if each.phase == admin.OUTPUT_PHASE_WAITING]
        assert [each.wait_reason for each in waiting] == [admin.WAIT_REASON_SLOT]
        running = [each for each in outputs if each.phase != admin.OUTPUT_PHASE_WAITING]
        held = [block for each in running for block in each.block_ids]
        assert len(held) == len(set(held)) == sum(each.num_blocks for each in running) > 0

        ahead = estimate(stub, PROMPT)
        assert ahead.num_requests_ahead == 1
        assert ahead.HasField("predicted_ttft_s")

        assert operator.FlushPrefixCache(admin.FlushPrefixCacheRequest(), timeout=20).num_blocks > 0
        assert estimate(stub, PROMPT).cached_tokens == 0
        for each in streams:
            each.join(timeout=60)
        assert not states()
        tenants = operator.ListRequests(admin.ListRequestsRequest(), timeout=20).tenants
        assert tenants[0].prompt_tokens == len(PROMPT) + 6
