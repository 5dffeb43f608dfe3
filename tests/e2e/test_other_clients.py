"""grpcurl and buf curl, the tools that operators hold, work as they come."""

import json
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.replica import Replica, running_replica
from tests.fakes.checkpoints import make_tiny_checkpoint

BINARIES = Path(sysconfig.get_path("scripts"))
SERVICE = "octavo.v1.InferenceService"
REQUEST = json.dumps(
    {
        "generation": {
            "prompt": {"text": "hello"},
            "stopping": {"max_tokens": 7, "ignore_eos": True},
            "sampling": {"temperature": 0},
        }
    }
)


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    folder = tmp_path_factory.mktemp("model")
    make_tiny_checkpoint(folder, family="qwen3")
    with running_replica(folder, hash_worker=[]) as started:
        yield started


def _run(*words: str) -> str:
    done = subprocess.run(
        [str(BINARIES / words[0]), *words[1:]],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _messages(text: str) -> list[dict[str, object]]:
    decoder, messages, at = json.JSONDecoder(), [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        message, at = decoder.raw_decode(text, at)
        messages.append(message)
    return messages


def _token_ids(messages: list[dict[str, object]]) -> list[int]:
    found: list[int] = []
    for message in messages:
        for delta in message["chunk"].get("outputs", ()):  # type: ignore[attr-defined]
            found += delta.get("tokenIds") or delta.get("token_ids") or ()  # buf, grpcurl
    return found


def test_grpcurl_lists_describes_and_checks_health(replica: Replica) -> None:
    listed = _run("grpcurl", "-plaintext", replica.target, "list").split()
    assert {SERVICE, "grpc.health.v1.Health"} <= set(listed)
    described = _run("grpcurl", "-plaintext", replica.target, "describe", f"{SERVICE}.Generate")
    assert "returns ( stream .octavo.v1.GenerateResponse )" in described
    health = _run("grpcurl", "-plaintext", replica.target, "grpc.health.v1.Health/Check")
    assert json.loads(health) == {"status": "SERVING"}


def test_grpcurl_streams_a_completion(replica: Replica) -> None:
    said = _run("grpcurl", "-plaintext", "-d", REQUEST, replica.target, f"{SERVICE}/Generate")
    messages = _messages(said)
    assert len(_token_ids(messages)) == 7
    assert '"reason": "FINISH_REASON_LENGTH"' in said


def test_buf_curl_streams_over_reflection_v1(replica: Replica) -> None:
    said = _run(
        *("buf", "curl", "--http2-prior-knowledge", "--protocol", "grpc"),
        *("--reflect-protocol", "grpc-v1", "-d", REQUEST),
        f"http://{replica.target}/{SERVICE}/Generate",
    )
    assert len(_token_ids(_messages(said))) == 7


def test_grpcurl_reads_the_admin_service(replica: Replica) -> None:
    said = _run("grpcurl", "-plaintext", replica.addresses.admin, "octavo.v1.AdminService/GetState")
    state = json.loads(said)
    assert state["is_ready"] is True
    roles = {process["role"] for process in state["processes"]}
    assert roles == {"supervisor", "core", "frontend", "worker"}
