"""Outputs with a form live through the death of any process, byte for byte."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

import octavo
from tests.e2e.replica import Replica, running_replica, wait_until
from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import make_tiny_checkpoint

pytestmark = pytest.mark.chaos
NUM_BEFORE = 15  # tokens of each stream before anything is killed
LIMIT_S = 90.0
FLAGS = ["--step-deadline-floor", "1", "--frontends", "2"]
NUMBERS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 999},
    "minItems": 30,
    "maxItems": 40,
    "x-guidance": {"whitespace_flexible": False},
}
FORMS: list[octavo.StructuredOutput | None] = [
    octavo.StructuredOutput(json_schema=NUMBERS),
    None,
    octavo.StructuredOutput(regex="([a-z]{2,5} ){30,40}"),
    None,
    octavo.StructuredOutput(lark='start: pair pair\npair: /[ab]{60}/ | "(" pair ")"'),
    None,
]


@dataclass
class Reader(threading.Thread):
    """Reads one request; the SDK hides what breaks."""

    client: octavo.Client
    index: int
    num_seen: int = 0
    result: octavo.Generation | None = None
    problems: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def __hash__(self) -> int:
        return hash(self.index)

    def run(self) -> None:
        prompt = [(7 * self.index + j) % NUM_IDS for j in range(5 + 9 * self.index)]
        form = FORMS[self.index]
        try:
            stream = self.client.stream(
                prompt,
                temperature=1.0,
                seed=self.index,
                n=1 + self.index % 2,
                max_tokens=150,
                ignore_eos=form is None,
                structured_output=form,
            )
            for delta in stream:
                self.num_seen += len(delta.token_ids)
            self.result = stream.result()
        except Exception as error:  # noqa: BLE001 - shown by the test
            self.problems.append(error)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), family="qwen3")


@pytest.fixture
def replica(model: Path) -> Iterator[Replica]:
    with running_replica(model, flags=FLAGS, hash_worker=["--step-ms", "10"]) as started:
        yield started


def read_all(target: str, replica: Replica, blow: Callable[[], None]) -> list[octavo.Generation]:
    """What all requests give when the blow falls on them."""
    with octavo.Client(target, timeout=LIMIT_S) as client:
        readers = [Reader(client, index) for index in range(len(FORMS))]
        for reader in readers:
            reader.start()
        wait_until(
            lambda: all(each.num_seen >= NUM_BEFORE or each.problems for each in readers),
            limit_s=LIMIT_S,
            otherwise=replica.log,
        )
        blow()
        for reader in readers:
            reader.join(timeout=LIMIT_S)
            assert not reader.is_alive(), f"hangs at {reader.num_seen}\n{replica.log()}"
            assert reader.problems == [], replica.log()
    return [reader.result for reader in readers if reader.result is not None]


def kill_rank(replica: Replica) -> None:
    assert replica.workers is not None
    psutil.Process(replica.workers.pid).children(recursive=True)[0].kill()


def kill_core(replica: Replica) -> None:
    replica.process("scheduler_svc.engine").kill()


def kill_frontend_then_core(replica: Replica) -> None:
    """The second frontend gets the grammars from the core, and gives them to the next core."""
    replica.process("frontend-0").kill()
    time.sleep(0.5)
    kill_core(replica)


BLOWS = {"worker": kill_rank, "core": kill_core, "frontend, core": kill_frontend_then_core}


def test_outputs_with_a_form_live_through_deaths_byte_for_byte(replica: Replica) -> None:
    calm = read_all(replica.target, replica, lambda: None)
    ends = [output.finish_reason for result in calm[::2] for output in result.outputs]
    assert octavo.FinishReason.EOS in ends
    for name, blow in BLOWS.items():
        struck = read_all(replica.target, replica, lambda: blow(replica))  # noqa: B023 - at once
        assert [each.outputs for each in struck] == [each.outputs for each in calm], name


def test_an_output_with_a_form_goes_on_at_another_replica(replica: Replica, model: Path) -> None:
    with running_replica(model, flags=FLAGS, hash_worker=["--step-ms", "10"]) as other:
        calm = read_all(other.target, other, lambda: None)
        both = f"{replica.target},{other.target}"
        struck = read_all(both, replica, replica.end)
    assert [each.outputs for each in struck] == [each.outputs for each in calm]
