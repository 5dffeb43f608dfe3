"""Clients in other languages, and the tools that operators hold, work as they come."""

import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

import octavo
from tests.e2e.replica import Replica, running_replica
from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import make_tiny_checkpoint
from tests.fakes.hash_tokens import expected_tokens
from tests.fakes.hostile_messages import METHODS

BINARIES = Path(sysconfig.get_path("scripts"))
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "client" / "examples"
SERVICE = "octavo.v1.InferenceService"
CALLS = json.loads((EXAMPLES / "requests.json").read_text(encoding="utf-8"))
SERVED = {method.name for method in METHODS}
NODE_PACKAGES = ("@grpc/grpc-js@1.13.4", "@grpc/proto-loader@0.7.15")
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


def test_the_example_of_each_call_works_with_grpcurl(replica: Replica) -> None:
    for name, request in CALLS.items():
        if name in SERVED:
            data = json.dumps(request)
            said = _run("grpcurl", "-plaintext", "-d", data, replica.target, f"{SERVICE}/{name}")
            assert _messages(said), name


def test_the_example_of_each_call_works_in_python(replica: Replica) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "calls.py"), replica.target],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = {line[2:] for line in done.stdout.splitlines() if line.startswith("# ")}
    assert {"Generate", "Attach", "Cancel", "GenerateBatch"} <= made <= SERVED


def test_the_example_of_each_call_works_in_node(replica: Replica, tmp_path: Path) -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if not (node and npm):
        pytest.skip("node and npm are not installed")
    for part in ("client/examples", "protos"):
        shutil.copytree(ROOT / part, tmp_path / part)
    folder = tmp_path / "client" / "examples" / "node"
    install = [npm, "install", "--silent", "--no-fund", "--no-audit", *NODE_PACKAGES]
    subprocess.run(install, cwd=folder, check=True, timeout=120)
    names = [name for name in CALLS if name in SERVED]
    done = subprocess.run(
        [node, "call.mjs", replica.target, *names],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} == set(names)


def test_a_batch_is_answered_whole_whatever_its_entries_need(replica: Replica) -> None:
    prompts = [[number % NUM_IDS, 3 + number // NUM_IDS] for number in range(300)]
    params = [
        octavo.SamplingParams(temperature=0, max_tokens=1 + number % 9, ignore_eos=True)
        for number in range(300)
    ]
    with octavo.Client(replica.target) as client:
        answers = {
            one.index: one
            for one in client.generate_batch(
                [*prompts, []], params=[*params, octavo.SamplingParams()]
            )
        }
    assert isinstance(answers.pop(300).error, octavo.InvalidRequest)
    assert sorted(answers) == list(range(300))
    for index, answer in answers.items():
        expected = expected_tokens(prompts[index], 1 + index % 9, vocab_size=NUM_IDS)
        assert list(answer.result().token_ids) == expected
