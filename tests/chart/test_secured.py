"""TLS, API keys, certificates of clients: the chart's own client at its own secured port."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.main import main
from tests.chart.conftest import Render
from tests.chart.local_pod import LocalContainer, LocalPod
from tests.chart.manifests import container, find, pod, volumes
from tests.chart.rehearsed_pod import pod_ports
from tests.e2e.replica import ROOT
from tests.fakes.certificates import make_authority, make_certificate
from tests.fakes.checkpoints import make_tiny_checkpoint

SECURED = {
    "tls": {"secretName": "octavo-tls", "clientCaSecretName": "clients"},
    "apiKeys": {"secretName": "octavo-keys"},
    "client": {
        "apiKeySecretName": "tester",
        "caSecretName": "octavo-ca",
        "certSecretName": "tester-tls",
    },
}


def test_a_secured_port_reads_its_secrets_from_folders(render: Render) -> None:
    """A folder follows its secret; a single file, by subPath, would not."""
    manifests = render(SECURED)
    scheduler = container(manifests, "scheduler")
    mounts = {m["name"]: m for m in scheduler["volumeMounts"]}
    for name, secret in (
        ("tls", "octavo-tls"),
        ("client-ca", "clients"),
        ("api-keys", "octavo-keys"),
    ):
        assert volumes(manifests)[name]["secret"] == {"secretName": secret, "defaultMode": 0o440}
        assert mounts[name]["readOnly"]
        assert "subPath" not in mounts[name]
        assert any(mounts[name]["mountPath"] in word for word in scheduler["args"])
    worker = {m["name"] for m in container(manifests, "worker")["volumeMounts"]}
    assert not worker & {"tls", "client-ca", "api-keys"}


def test_a_client_shows_its_key_as_a_variable_and_never_on_a_command_line(render: Render) -> None:
    manifests = render({**SECURED, "bench": {"enabled": True}})
    [stream] = find(manifests, "Pod")["spec"]["containers"]
    [bench] = find(manifests, "Job")["spec"]["template"]["spec"]["containers"]
    source = {"secretKeyRef": {"name": "tester", "key": "api-key"}}
    for one in (stream, bench):
        assert {"name": "OCTAVO_API_KEY", "valueFrom": source} in one["env"]
        assert "--tls-ca=/etc/octavo/ca/ca.crt" in one["args"]
        assert "--tls-cert=/etc/octavo/cert/tls.crt" in one["args"]


def test_without_secrets_nothing_of_them_is_there(render: Render) -> None:
    manifests = render({})
    said = json.dumps(manifests)
    for word in ("/etc/octavo", "OCTAVO_API_KEY", "--tls", "--api-keys-file", "--tracing", "OTEL_"):
        assert word not in said


def test_traces_go_to_the_collector_that_is_named(render: Render) -> None:
    tracing = {"enabled": True, "endpoint": "http://collector:4317", "sampleRatio": 0.25}
    scheduler = container(render({"tracing": tracing}), "scheduler")
    values = {e["name"]: e.get("value") for e in scheduler["env"]}
    assert "--tracing" in scheduler["args"]
    assert values["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4317"
    assert values["OTEL_TRACES_SAMPLER"] == "parentbased_traceidratio"
    assert values["OTEL_TRACES_SAMPLER_ARG"] == "0.25"


def test_whatever_changes_in_the_bench_jobs_pod_makes_another_job(render: Render) -> None:
    """An upgrade that changed a Job would fail."""

    def name(**values: Any) -> str:
        return str(find(render({**values, "bench": bench}), "Job")["metadata"]["name"])

    bench: dict[str, Any] = {"enabled": True}
    usual = name()
    assert usual == name(replicas=2)
    changed = {name(scheduler={"image": {"tag": "2"}}), name(ports={"grpc": 50055})}
    bench = {"enabled": True, "args": ["--rate=2"]}
    assert len({usual, *changed, name()}) == 4


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="pod-") as folder:
        yield Path(folder)


@pytest.fixture
def secrets(place: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Path]:
    """Folders as the kubelet would mount them, by the names of volumes; and the tester's key."""
    folders = {name: place / name for name in ("tls", "client-ca", "api-keys", "ca", "cert")}
    for folder in folders.values():
        folder.mkdir()
    authority, clients = (make_authority(place, name) for name in ("authority", "clients"))
    for name, signed_by in (("tls", authority), ("cert", clients)):
        pair = make_certificate(place, name, signed_by=signed_by)
        (folders[name] / "tls.crt").write_bytes(pair.certificate.read_bytes())
        (folders[name] / "tls.key").write_bytes(pair.key.read_bytes())
    (folders["ca"] / "ca.crt").write_bytes(authority.certificate.read_bytes())
    (folders["client-ca"] / "ca.crt").write_bytes(clients.certificate.read_bytes())
    assert main(["keys", "new", "--tenant", "tester", "--key-file", str(place / "key")]) == 0
    (folders["api-keys"] / "keys.jsonl").write_text(capsys.readouterr().out)
    return {**folders, "key": place / "key"}


def run_client(
    spec: dict[str, Any], secrets: dict[str, Path], *, with_key: bool
) -> subprocess.CompletedProcess[str]:
    """A client container's command at a pod on this machine."""
    one = LocalContainer(spec, secrets["tls"].parent)
    words = [one.local(word) for word in [*spec["command"], *spec["args"]]]
    words = [word.replace("demo-octavo", "localhost") for word in words]
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")])}
    if with_key:
        environment["OCTAVO_API_KEY"] = secrets["key"].read_text().strip()
    return subprocess.run(
        [sys.executable, *words[1:]],
        env=environment | {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


def test_the_charts_clients_pass_the_charts_secured_port(
    render: Render, secrets: dict[str, Path], place: Path
) -> None:
    """`helm test` and the bench job with key and certificate; without the key, neither."""
    values = {
        **SECURED,
        "model": {"name": "tiny", "hostPath": "/srv/models"},
        "ports": pod_ports(1)[0],
        "bench": {
            "enabled": True,
            "args": ["--workload=fixed", "--prompt-tokens=8", "--output-tokens=8", "--count=4"],
        },
    }
    manifests = render(values)
    make_tiny_checkpoint(place / "model/tiny", family="qwen3")
    served = LocalPod(pod(manifests), place)
    try:
        served.start()
        served.wait_ready()
        [stream] = find(manifests, "Pod")["spec"]["containers"]
        [bench] = find(manifests, "Job")["spec"]["template"]["spec"]["containers"]
        done = run_client(stream, secrets, with_key=True)
        assert done.returncode == 0, done.stderr
        measured = run_client(bench, secrets, with_key=True)
        assert measured.returncode == 0, measured.stderr
        assert "4 of 4 completed" in measured.stdout
        refused = run_client(stream, secrets, with_key=False)
        assert refused.returncode != 0
        assert "no API key came with the call" in refused.stderr
    finally:
        served.end()
