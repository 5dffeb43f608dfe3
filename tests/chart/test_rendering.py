"""The chart under both Helm versions: it lints, renders valid Kubernetes, and refuses by name."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.chart.conftest import CHART, VALUES, Helm
from tools import fetch_helm

KUBERNETES_VERSIONS = ("1.29", "1.37")

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"replicaCount": 2}, "replicaCount"),
    ({"replicas": "two"}, "replicas"),
    ({"model": {"nmae": "x"}}, "nmae"),
    ({"model": {"name": ""}}, "model.name"),
    ({"model": {"hostPath": "models"}}, "model.hostPath"),
    ({"model": {"hostPath": "/m", "existingClaim": "m"}}, "model.existingClaim"),
    ({"worker": {"device": "tpu"}}, "worker.device"),
    ({"worker": {"tensorParallelSize": 0}}, "worker.tensorParallelSize"),
    ({"worker": {"extraArgs": ["enforce-eager"]}}, "worker.extraArgs.0"),
    ({"worker": {"extraArgs": ["--model=other"]}}, "worker.extraArgs: --model=other"),
    ({"worker": {"resources": {"limits": {"memory": "lots"}}}}, "worker.resources.limits.memory"),
    ({"worker": {"extraArgs": ["--block-size=32"]}}, "worker.extraArgs: --block-size=32"),
    ({"engineArgs": ["--workers=local"]}, "engineArgs: --workers=local"),
    ({"scheduler": {"extraArgs": ["--port=1"]}}, "scheduler.extraArgs: --port=1"),
    ({"scheduler": {"image": {"pullPolicy": "Sometimes"}}}, "scheduler.image.pullPolicy"),
    ({"ports": {"grpc": 80}}, "ports.grpc"),
    ({"ports": {"grpc": 9464}}, "ports.metrics"),
    ({"probes": {"readiness": "exec"}}, "probes.readiness"),
    ({"drain": {"limitSeconds": -1}}, "drain.limitSeconds"),
    ({"terminationGracePeriodSeconds": 144}, "terminationGracePeriodSeconds is 144"),
    ({"runAsUser": 0}, "runAsUser"),
]


def values_of(file: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(file.read_text()))


@pytest.mark.parametrize("file", VALUES, ids=lambda file: file.stem)
def test_the_chart_lints_strictly(helm: Helm, file: Path) -> None:
    done = helm.run("lint", "--strict", str(CHART), "--values", str(file))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("file", VALUES, ids=lambda file: file.stem)
def test_every_manifest_is_valid_kubernetes(helm: Helm, file: Path) -> None:
    manifests = helm.render(values_of(file))
    assert sorted(manifest["kind"] for manifest in manifests) == [
        "Deployment",
        "Service",
        "Service",
    ]
    for manifest in manifests:
        for version in KUBERNETES_VERSIONS:
            kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize(("values", "named"), REFUSED, ids=str)
def test_a_wrong_value_is_refused_by_name(helm: Helm, values: dict[str, Any], named: str) -> None:
    # Helm 3 writes a field as worker.device, Helm 4 as /worker/device
    assert re.search(re.escape(named).replace(r"\.", "[./]"), helm.refusal(values))


@pytest.mark.parametrize("file", VALUES, ids=lambda file: file.stem)
def test_both_versions_render_the_same(file: Path, tmp_path: Path) -> None:
    programs = [fetch_helm.program(release) for release in fetch_helm.RELEASES]
    rendered = [Helm(program, tmp_path).render(values_of(file)) for program in programs]
    assert all(manifests == rendered[0] for manifests in rendered)
