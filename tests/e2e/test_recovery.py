"""Any process may be killed: streams go on, nothing received is repeated, skipped or changed."""

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from octavo.v1 import inference_pb2 as api
from tests.e2e.calls import Received, collect, connected, generation
from tests.e2e.replica import Replica, running_replica, wait_until
from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import make_tiny_checkpoint
from tests.fakes.hash_tokens import expected_tokens

pytestmark = pytest.mark.chaos
RESUMABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED)
NUM_STREAMS = 12
NUM_TOKENS = 150
FLAGS = ["--step-deadline-floor", "1", "--frontends", "2"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), family="qwen3")


@pytest.fixture
def replica(model: Path) -> Iterator[Replica]:
    with running_replica(model, flags=FLAGS, hash_worker=["--step-ms", "10"]) as started:
        yield started


class Caller(threading.Thread):
    """One patient client: attaches again, from what it has, whenever its stream breaks."""

    def __init__(self, target: str, index: int) -> None:
        super().__init__(daemon=True)
        self.prompt = [(7 * index + j) % NUM_IDS for j in range(5 + 9 * (index % NUM_STREAMS))]
        self.seed = index
        self.got = Received()
        self.num_breaks = 0
        self.problem = ""
        self._target = target
        self._wanted = generation(
            self.prompt,
            max_tokens=NUM_TOKENS,
            temperature=1.0,
            seed=self.seed,
            request_id=f"caller-{index}",
            keep_for_s=60,
        )

    def run(self) -> None:
        try:
            with connected(self._target) as stub:
                self._take(stub.Generate(api.GenerateRequest(generation=self._wanted), timeout=60))
                while self.got.finish is None and self.num_breaks < 100:
                    self._take(self._attach(stub))
        except AssertionError as error:
            self.problem = str(error)

    def _attach(self, stub: object) -> Iterator[api.AttachResponse]:
        request = api.AttachRequest(
            request_id=self._wanted.request_id, from_tokens=[len(self.got.token_ids)]
        )
        return stub.Attach(request, timeout=60)  # type: ignore[attr-defined,no-any-return]

    def _take(self, call: Iterator[api.GenerateResponse] | Iterator[api.AttachResponse]) -> None:
        try:
            for response in call:
                for delta in response.chunk.outputs:
                    assert delta.first_token_index == len(self.got.token_ids)
                    self.got.token_ids += delta.token_ids
                    if delta.HasField("finish"):
                        self.got.finish = delta.finish
        except grpc.RpcError as error:
            self.num_breaks += 1
            if error.code() not in RESUMABLE:
                raise AssertionError(str(error)) from error
            threading.Event().wait(0.1)


def start_callers(replica: Replica, *, first: int = 0, at_least: int = 20) -> list[Caller]:
    """Callers numbered from `first`, once each has `at_least` tokens."""
    callers = [Caller(replica.target, first + index) for index in range(NUM_STREAMS)]
    for caller in callers:
        caller.start()
    wait_until(lambda: all(len(c.got.token_ids) >= at_least for c in callers), limit_s=60)
    return callers


def check_all(callers: list[Caller], replica: Replica) -> None:
    """Every caller ends, with exactly the tokens of an undisturbed run."""
    for caller in callers:
        caller.join(timeout=90)
        assert not caller.is_alive(), f"hangs at {len(caller.got.token_ids)}\n{replica.log()}"
        assert caller.problem == "", replica.log()
        expected = expected_tokens(
            caller.prompt, NUM_TOKENS, seed=caller.seed, temperature=1.0, vocab_size=NUM_IDS
        )
        assert caller.got.token_ids == expected


def _ranks(replica: Replica) -> list[psutil.Process]:
    assert replica.workers is not None
    return psutil.Process(replica.workers.pid).children(recursive=True)


def test_streams_survive_a_killed_worker(replica: Replica) -> None:
    callers = start_callers(replica)
    _ranks(replica)[0].kill()
    check_all(callers, replica)
    assert sum(caller.num_breaks for caller in callers) == 0


def test_streams_survive_a_stopped_worker(replica: Replica) -> None:
    callers = start_callers(replica)
    _ranks(replica)[0].suspend()
    check_all(callers, replica)
    assert sum(caller.num_breaks for caller in callers) == 0


def test_streams_survive_a_killed_core(replica: Replica) -> None:
    callers = start_callers(replica)
    replica.process("scheduler_svc.engine").kill()
    check_all(callers, replica)
    assert sum(caller.num_breaks for caller in callers) == 0


def test_streams_survive_a_stopped_core(replica: Replica) -> None:
    callers = start_callers(replica)
    replica.process("scheduler_svc.engine").suspend()
    check_all(callers, replica)
    assert sum(caller.num_breaks for caller in callers) == 0


def test_streams_go_on_by_attach_when_a_frontend_is_killed(replica: Replica) -> None:
    callers = start_callers(replica)
    replica.process("frontend-0").kill()
    check_all(callers, replica)


def test_a_result_is_kept_for_a_client_that_comes_back(replica: Replica) -> None:
    wanted = generation([4, 5, 6], max_tokens=30, request_id="away", keep_for_s=60)
    with connected(replica.target) as stub:
        call = stub.Generate(api.GenerateRequest(generation=wanted), timeout=60)
        first = next(iter(call)).chunk
        call.cancel()
        again = stub.Attach(api.AttachRequest(request_id="away"), timeout=60)
        [whole] = collect(response.chunk for response in again)
        later = stub.Attach(api.AttachRequest(request_id="away", from_tokens=[10]), timeout=60)
        tail = [i for response in later for d in response.chunk.outputs for i in d.token_ids]
    expected = expected_tokens([4, 5, 6], 30, seed=0, temperature=0.0, vocab_size=NUM_IDS)
    assert whole.token_ids == expected
    assert tail == expected[10:]
    assert list(first.outputs[0].token_ids) == expected[: len(first.outputs[0].token_ids)]
