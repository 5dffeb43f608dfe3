"""Hostile calls of every method over real channels: all are answered, nothing falls, nothing leaks.

A short run in every test; `make test-long PART=fuzz` makes a hundred thousand.
"""

from __future__ import annotations

import collections
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor

from tests.e2e.calls import connected, generation, stream
from tests.e2e.replica import Replica, running_replica, wait_until
from tests.e2e.test_long import rounds
from tests.fakes.checkpoints import make_tiny_checkpoint
from tests.fakes.hostile_messages import METHODS, HostileMessages

SERVICE = "/octavo.v1.InferenceService"
# No call here may take so long: an answer that is this late is none.
CALL_LIMIT_S = 60
NUM_THREADS = 8
EXPECTED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,  # another model, an unknown id
    grpc.StatusCode.ALREADY_EXISTS,  # a known id with another body
    grpc.StatusCode.ABORTED,  # another call with the same id took the stream
    grpc.StatusCode.FAILED_PRECONDITION,  # more tokens than are known
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,  # by us
}


class Caller:
    """Calls with random requests, and judges how each ended."""

    def __init__(self, channel: grpc.Channel, seed: int) -> None:
        self._channel = channel
        self._hostile = HostileMessages(seed)
        self.ends: collections.Counter[tuple[str, grpc.StatusCode]] = collections.Counter()

    def call(self) -> None:
        """One call to its end."""
        method = self._hostile.method()
        data = self._hostile.request(method)
        self.ends[method.name, self._end_of(method, data)] += 1

    def _end_of(self, method: MethodDescriptor, data: bytes) -> grpc.StatusCode:
        make = self._channel.unary_stream if method.server_streaming else self._channel.unary_unary
        call: Any = make(f"{SERVICE}/{method.name}")
        try:
            answer = call(data, timeout=CALL_LIMIT_S)
            if method.server_streaming:
                self._read(answer)
        except grpc.RpcError as error:
            if error.code() not in EXPECTED:
                raise AssertionError(f"{method.name} {data!r}") from error
            return error.code()
        return grpc.StatusCode.OK

    def _read(self, call: Any) -> None:
        """Reads a stream, or leaves it in the middle."""
        leaves = self.ends.total() % 10 == 0
        for number, _ in enumerate(call):
            if leaves and number == 1:
                call.cancel()


def assault(replica: Replica, *, num_calls: int, seed: int) -> collections.Counter[Any]:
    """Many callers at once; how calls ended, by method and status."""

    def run(number: int) -> collections.Counter[Any]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(replica.target, options) as channel:
            caller = Caller(channel, 1000 * seed + number)
            for _ in range(num_calls // NUM_THREADS):
                caller.call()
        return caller.ends

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return sum(pool.map(run, range(NUM_THREADS)), collections.Counter())


def check_alive_and_empty(replica: Replica, pids: set[int]) -> None:
    """Nothing restarted, nothing runs on, no block is held, and the service serves."""
    assert pids <= {process.pid for process in replica.processes()}
    wait_until(
        lambda: gauge(replica, "octavo_kv_blocks_in_use") == 0,
        limit_s=60,
        otherwise=lambda: replica.get("/metrics")[1],
    )
    wait_until(lambda: gauge(replica, "octavo_num_requests_live") == 0, limit_s=60)
    with connected(replica.target) as stub:
        [output] = stream(stub, generation([1, 2], max_tokens=4))
    assert len(output.token_ids) == 4
    assert "Traceback" not in replica.log()


def gauge(replica: Replica, name: str) -> float:
    lines = replica.get("/metrics")[1].splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.split("{")[0].split()[0] == name)


def lasting(replica: Replica) -> set[int]:
    """The processes that must not end; those that run a template or a grammar may."""
    helpers = ("template", "grammar")
    return {
        process.pid
        for process in replica.processes()
        if not any(word in part for part in process.cmdline() for word in helpers)
    }


def memory(replica: Replica) -> dict[int, float]:
    return {process.pid: process.memory_info().rss for process in replica.processes()}


# What is kept for a caller is kept for a moment only, so that the end of the test sees none of it.
FLAGS = ["--max-keep-for", "1"]


def test_hostile_calls_are_all_answered_and_leave_nothing_behind(tmp_path: Path) -> None:
    model = make_tiny_checkpoint(tmp_path / "model", family="qwen3")
    with running_replica(model, flags=FLAGS, hash_worker=[]) as replica:
        pids = lasting(replica)
        ends = assault(replica, num_calls=1200, seed=0)
        check_alive_and_empty(replica, pids)
    assert {name for name, _ in ends} == {method.name for method in METHODS}
    # a fuzzer that never gets past the first check finds nothing
    for name in ("Generate", "GenerateUnary", "GenerateBatch", "Tokenize", "Cancel"):
        assert ends[name, grpc.StatusCode.OK] + ends[name, grpc.StatusCode.NOT_FOUND] > 0, name
        assert sum(count for (one, _), count in ends.items() if one == name) > 20


@pytest.mark.long("fuzz")
def test_a_hundred_thousand_hostile_calls_leave_memory_as_it_was(tmp_path: Path) -> None:
    model = make_tiny_checkpoint(tmp_path / "model", family="qwen3")
    num_rounds = rounds(50)
    with running_replica(model, flags=FLAGS, hash_worker=[]) as replica:
        pids = lasting(replica)
        for seed in range(5):  # caches and pools reach their size
            assault(replica, num_calls=2000, seed=seed)
        before = memory(replica)
        for seed in range(5, num_rounds):
            assault(replica, num_calls=2000, seed=seed)
            check_alive_and_empty(replica, pids)
        after = memory(replica)
        for pid in pids:
            assert after[pid] < 1.3 * before[pid] + 50e6, (pid, before[pid], after[pid])
