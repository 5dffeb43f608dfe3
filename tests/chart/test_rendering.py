"""The chart under both Helm versions: it lints, renders valid Kubernetes, and refuses by name."""

import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.chart.conftest import CHART, VALUES, Helm, Render
from tools import fetch_helm

KUBERNETES_VERSIONS = ("1.29", "1.37")
# image volumes came later
OLDEST_FOR = {"image-volume": ("1.31", "1.37")}
CUSTOM: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parent / "schemas/custom_resources.yaml").read_text()
)
DEFINITIONS = {"definitions": CUSTOM["definitions"]}

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
    ({"ports": {"grpc": 9464}}, "ports.grpc and ports.metrics are both 9464"),
    ({"ports": {"metrics": 50052}}, "ports.metrics and ports.admin are both 50052"),
    ({"probes": {"readiness": "exec"}}, "probes.readiness"),
    ({"drain": {"limitSeconds": -1}}, "drain.limitSeconds"),
    ({"terminationGracePeriodSeconds": 144}, "terminationGracePeriodSeconds is 144"),
    ({"runAsUser": 0}, "runAsUser"),
    ({"model": {"hostPath": "/m", "image": {"reference": "m:1"}}}, "model.image.reference"),
    ({"model": {"hostPath": "/m", "tokenSecret": {"name": "t"}}}, "model.tokenSecret.name"),
    ({"model": {"image": {"refrence": "m:1"}}}, "refrence"),
    ({"worker": {"image": {"digest": "sha256:1"}}}, "worker.image.digest"),
    (
        {"worker": {"device": "cuda", "resources": {"limits": {"nvidia.com/gpu": 2}}}},
        "worker.resources.limits: nvidia.com/gpu",
    ),
    ({"volumes": {"cacheClaim": "c"}, "replicas": 2}, "volumes.cacheClaim"),
    ({"volumes": {"cacheClaim": "c"}, "autoscaling": {"kind": "hpa"}}, "volumes.cacheClaim"),
    ({"autoscaling": {"kind": "cpu"}}, "autoscaling.kind"),
    ({"autoscaling": {"kind": "hpa", "maxReplicas": 0}}, "autoscaling.maxReplicas"),
    (
        {"autoscaling": {"kind": "hpa", "minReplicas": 5}},
        "autoscaling.maxReplicas is 4, less than autoscaling.minReplicas, 5",
    ),
    ({"autoscaling": {"kind": "keda"}}, "autoscaling.keda.serverAddress is missing"),
    ({"autoscaling": {"keda": {"serverAddress": "prometheus"}}}, "autoscaling.keda.serverAddress"),
    ({"monitoring": {"scrape": "yes"}}, "monitoring.scrape"),
    ({"monitoring": {"interval": "15"}}, "monitoring.interval"),
    (
        {"monitoring": {"rules": {"enabled": True, "disabled": ["OctavoUp"]}}},
        "monitoring.rules.disabled: there is no alert OctavoUp",
    ),
    ({"monitoring": {"rules": {"runbookUrl": "docs"}}}, "monitoring.rules.runbookUrl"),
    ({"scheduler": {"extraArgs": ["--tls-cert=/x"]}}, "scheduler.extraArgs: --tls-cert=/x"),
    (
        {"tls": {"secretName": "t"}, "probes": {"readiness": "grpc"}},
        "probes.readiness grpc: the kubelet's probe speaks no TLS",
    ),
    ({"tls": {"clientCaSecretName": "c"}}, "tls.clientCaSecretName needs tls.secretName"),
    (
        {"bench": {"enabled": True}, "apiKeys": {"secretName": "k"}},
        "client.apiKeySecretName is missing",
    ),
    (
        {
            "bench": {"enabled": True},
            "tls": {"secretName": "t", "clientCaSecretName": "c"},
        },
        "client.certSecretName is missing",
    ),
    ({"bench": {"enabled": True, "args": ["--target=a:1"]}}, "bench.args: --target=a:1"),
    ({"bench": {"args": ["count"]}}, "bench.args.0"),
    ({"tracing": {"enabled": True}}, "tracing.endpoint is missing"),
    ({"tracing": {"sampleRatio": 2}}, "tracing.sampleRatio"),
    ({"route": {"enabled": True}}, "route.parentRefs is missing"),
    ({"route": {"parentRefs": [{"gateway": "g"}]}}, "route.parentRefs.0"),
    ({"route": {"hostnames": ["https://a"]}}, "route.hostnames.0"),
    ({"inferencePool": {"enabled": True}}, "inferencePool.endpointPicker.name is missing"),
    (
        {"inferencePool": {"endpointPicker": {"failureMode": "Open"}}},
        "inferencePool.endpointPicker.failureMode",
    ),
    ({"podDisruptionBudget": {"maxUnavailable": "half"}}, "podDisruptionBudget.maxUnavailable"),
    ({"networkPolicy": {"from": {}}}, "networkPolicy.from"),
    ({"topologySpreadConstraints": [{"maxSkew": 1}]}, "topologySpreadConstraints.0"),
    ({"extraContainers": [{"image": "x"}]}, "extraContainers.0"),
    ({"extraObjects": [{"kind": "ConfigMap"}]}, "extraObjects.0"),
    ({"commonLabels": {"app.kubernetes.io/name": "x"}}, "commonLabels: app.kubernetes.io/name"),
    ({"commonLabels": {"stage": 1}}, "commonLabels.stage"),
]


def values_of(file: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(file.read_text()))


@pytest.mark.parametrize("file", VALUES, ids=lambda file: file.stem)
def test_the_chart_lints_strictly(helm: Helm, file: Path) -> None:
    done = helm.run("lint", "--strict", str(CHART), "--values", str(file))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("file", VALUES, ids=lambda file: file.stem)
def test_every_manifest_is_valid_kubernetes(helm: Helm, file: Path) -> None:
    for manifest in helm.render(values_of(file)):
        key = f"{manifest['apiVersion']}/{manifest['kind']}"
        if key in CUSTOM["specs"]:
            jsonschema.validate(manifest["spec"], CUSTOM["specs"][key] | DEFINITIONS)
        else:
            for version in OLDEST_FOR.get(file.stem, KUBERNETES_VERSIONS):
                kubernetes_validate.validate(manifest, version, strict=True)


def test_every_kind_that_the_chart_can_make_is_rendered_by_some_values(render: Render) -> None:
    templates = (path.read_text() for path in (CHART / "templates").rglob("*.yaml"))
    lines = [line for text in templates for line in re.findall(r"^kind: (.+)$", text, re.MULTILINE)]
    wanted = {kind for line in lines for kind in re.findall(r"\b[A-Z][A-Za-z]+", line)}
    rendered = {m["kind"] for file in VALUES for m in render(values_of(file))}
    assert wanted - rendered == set()
    assert {"ServiceMonitor", "PodMonitor", "ScaledObject", "GRPCRoute", "Pod"} <= rendered


@pytest.mark.parametrize(("values", "named"), REFUSED, ids=str)
def test_a_wrong_value_is_refused_by_name(helm: Helm, values: dict[str, Any], named: str) -> None:
    # Helm 3 writes a field as worker.device, Helm 4 as /worker/device
    assert re.search(re.escape(named).replace(r"\.", "[./]"), helm.refusal(values))


@pytest.mark.parametrize("file", VALUES, ids=lambda file: file.stem)
def test_both_versions_render_the_same(file: Path, tmp_path: Path) -> None:
    programs = [fetch_helm.program(release) for release in fetch_helm.RELEASES]
    rendered = [Helm(program, tmp_path).render(values_of(file)) for program in programs]
    assert all(manifests == rendered[0] for manifests in rendered)
