"""What takes long: a soak of short requests.

Each is a named part of `make test-long`. The number of rounds comes from OCTAVO_ROUNDS, so that a
part can be tried briefly.
"""

import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from octavo.v1 import inference_pb2 as api
from octavo.v1.inference_pb2_grpc import InferenceServiceStub
from tests.e2e.calls import connected, generation, stream
from tests.e2e.replica import Replica, running_replica, wait_until
from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import make_tiny_checkpoint
from tests.fakes.hash_tokens import expected_tokens


def rounds(usual: int) -> int:
    """How often a part repeats."""
    return int(os.environ.get("OCTAVO_ROUNDS", usual))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tiny_checkpoint(tmp_path / "model", family="qwen3")


@pytest.mark.long("soak")
def test_many_short_requests_leave_memory_and_blocks_as_they_were(model: Path) -> None:
    shared = [index % NUM_IDS for index in range(64)]
    with running_replica(model, hash_worker=[]) as replica, connected(replica.target) as stub:
        _send_thousand(stub, shared, first=0)
        before = _sizes(replica)
        for number in range(1, rounds(100)):
            _send_thousand(stub, shared, first=1000 * number)
        wait_until(lambda: _gauge(replica, "octavo_kv_blocks_in_use") == 0, limit_s=10)
        assert _gauge(replica, "octavo_num_requests_live") == 0
        for name, (memory, files) in _sizes(replica).items():
            assert memory < 1.5 * before[name][0] + 50e6, name
            assert files <= before[name][1] + 32, name


def _send_thousand(stub: InferenceServiceStub, shared: list[int], *, first: int) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: _short(stub, shared, number), range(first, first + 1000)))


def _short(stub: InferenceServiceStub, shared: list[int], number: int) -> None:
    draw = random.Random(number)
    own = [draw.randrange(NUM_IDS) for _ in range(draw.randrange(1, 20))]
    prompt = shared + own if draw.random() < 0.9 else own
    wanted = generation(prompt, max_tokens=8)
    if draw.random() < 0.05:
        call = stub.Generate(api.GenerateRequest(generation=wanted), timeout=60)
        next(iter(call))
        call.cancel()
        return
    [output] = stream(stub, wanted)
    assert output.token_ids == expected_tokens(prompt, 8, vocab_size=NUM_IDS)


def _sizes(replica: Replica) -> dict[int, tuple[float, int]]:
    return {p.pid: (p.memory_info().rss, p.num_fds()) for p in replica.processes()}


def _gauge(replica: Replica, name: str) -> float:
    lines = replica.get("/metrics")[1].splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.split("{")[0].split()[0] == name)
