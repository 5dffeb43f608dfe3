"""`helm test`: its program run against a service that streams and one that refuses."""

import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from tests.chart.conftest import Render
from tests.chart.manifests import find
from tests.fakes.inference_server import FakeInferenceServer, Refusal


@pytest.fixture
def command(render: Render) -> list[str]:
    """What the test pod runs, up to its flags."""
    [stream] = find(render({}), "Pod")["spec"]["containers"]
    assert stream["args"] == ["--target=demo-octavo:50051"]
    assert stream["command"][0] == "python"
    return [sys.executable, *stream["command"][1:]]


def run(command: list[str], target: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, f"--target={target}"], capture_output=True, text=True, check=False, timeout=60
    )


def test_a_service_that_streams_passes(command: list[str], tmp_path: Path) -> None:
    with FakeInferenceServer(socket=tmp_path / "s") as server:
        done = run(command, server.target)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_a_service_that_refuses_fails(command: list[str], tmp_path: Path) -> None:
    with FakeInferenceServer(socket=tmp_path / "s") as server:
        server.refusals.append(Refusal(code=grpc.StatusCode.INTERNAL, message="no logits"))
        done = run(command, server.target)
    assert done.returncode != 0
    assert "no logits" in done.stderr


def test_the_test_pod_holds_no_privilege(render: Render) -> None:
    pod = find(render({}), "Pod")["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    [stream] = pod["containers"]
    assert stream["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert stream["securityContext"]["allowPrivilegeEscalation"] is False
