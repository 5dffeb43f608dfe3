"""How the number of pods follows the load. Knows no autoscaler."""

import re

from scheduler_svc.metrics.catalog import CATALOG
from scheduler_svc.metrics.exporter import PREFIX
from tests.chart.conftest import Render
from tests.chart.manifests import deployment, find

KEDA = {"kind": "keda", "waitingTokens": 5000, "keda": {"serverAddress": "http://p:9090"}}


def is_gauge(name: str) -> bool:
    return CATALOG[name.removeprefix(PREFIX)].kind == "gauge"


def test_an_upgrade_leaves_the_number_of_pods_to_the_autoscaler(render: Render) -> None:
    manifests = render({"autoscaling": {"kind": "hpa"}})
    assert "replicas" not in deployment(manifests)
    assert deployment(manifests)["strategy"]["type"] == "RollingUpdate"
    assert deployment(render({}))["replicas"] == 1


def test_an_hpa_looks_at_waiting_tokens_and_full_memory(render: Render) -> None:
    manifests = render({"autoscaling": {"kind": "hpa", "waitingTokens": 5000}})
    spec = find(manifests, "HorizontalPodAutoscaler")["spec"]
    assert spec["scaleTargetRef"]["name"] == find(manifests, "Deployment")["metadata"]["name"]
    targets = {
        m["pods"]["metric"]["name"]: m["pods"]["target"]["averageValue"] for m in spec["metrics"]
    }
    assert targets == {"octavo_num_tokens_waiting": "5000", "octavo_kv_cache_usage_perc": "750m"}
    assert all(is_gauge(name) for name in targets)


def test_keda_asks_for_gauges_of_this_releases_pods_only(render: Render) -> None:
    manifests = render({"autoscaling": KEDA})
    spec = find(manifests, "ScaledObject")["spec"]
    assert spec["scaleTargetRef"]["name"] == find(manifests, "Deployment")["metadata"]["name"]
    thresholds = []
    for trigger in spec["triggers"]:
        found = re.fullmatch(
            r'sum\((\w+)\{namespace="default",pod=~"(.+)"\}\)', trigger["metadata"]["query"]
        )
        assert found is not None
        assert is_gauge(found[1])
        assert re.fullmatch(found[2], "demo-octavo-7d9f8b6c5-x2k4z")
        assert not re.fullmatch(found[2], "demo-octavo-blue-7d9f8b6c5-x2k4z")
        thresholds.append(trigger["metadata"]["threshold"])
    assert thresholds == ["5000", "0.75"]


def test_full_memory_can_be_left_out(render: Render) -> None:
    for scaling, kind, list_name in (
        ({"kind": "hpa"}, "HorizontalPodAutoscaler", "metrics"),
        (KEDA, "ScaledObject", "triggers"),
    ):
        manifests = render({"autoscaling": {**scaling, "kvUsagePercent": 0}})
        assert len(find(manifests, kind)["spec"][list_name]) == 1


def test_replicas_go_one_at_a_time_and_late(render: Render) -> None:
    """Each that goes drains its streams, and each that comes back loads a model."""
    hpa = find(render({"autoscaling": {"kind": "hpa"}}), "HorizontalPodAutoscaler")["spec"]
    down = hpa["behavior"]["scaleDown"]
    assert down["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 60}]
    assert down["stabilizationWindowSeconds"] == 600
    keda = find(render({"autoscaling": KEDA}), "ScaledObject")["spec"]
    assert keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == hpa["behavior"]
