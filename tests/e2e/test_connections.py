"""What a connection may do: its age, its number, pings, bytes that make no sense."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import octavo
from tests.e2e.replica import Replica, running_replica
from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import make_tiny_checkpoint
from tests.fakes.hash_tokens import expected_tokens

NUM_TOKENS = 150
MAX_CONNECTIONS = 12
FLAGS = [
    *("--max-connections", str(MAX_CONNECTIONS)),
    *("--max-connection-age", "0.5", "--connection-age-grace", "0.5"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), family="qwen3")


@pytest.fixture(scope="module")
def replica(model: Path) -> Iterator[Replica]:
    with running_replica(model, flags=FLAGS, hash_worker=["--step-ms", "20"]) as started:
        yield started


def _address(replica: Replica) -> tuple[str, int]:
    host, _, port = replica.target.rpartition(":")
    return host, int(port)


def test_a_stream_outlives_the_connections_it_comes_by(replica: Replica) -> None:
    params = octavo.SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, temperature=0.0)
    with octavo.Client(replica.target, timeout=60.0) as client:
        answer = client.stream([1, 2, 3], params=params)
        tokens = [id_ for delta in answer for id_ in delta.token_ids]
    assert tokens == expected_tokens([1, 2, 3], NUM_TOKENS, vocab_size=NUM_IDS)
    assert answer.num_reconnects >= 1


def test_connections_beyond_the_limit_are_closed_and_room_is_found_again(replica: Replica) -> None:
    with ExitStack() as stack:
        greeted = 0
        for _ in range(MAX_CONNECTIONS + 8):
            caller = stack.enter_context(socket.create_connection(_address(replica), timeout=10))
            greeted += bool(caller.recv(1))  # the server's settings, or the end
        assert 0 < greeted <= MAX_CONNECTIONS
    with octavo.Client(replica.target, timeout=60.0) as client:
        assert client.generate([4, 5], max_tokens=3).usage.completion_tokens == 3
