"""What the chart gives to Prometheus and Grafana. Knows the files, not what the alerts mean."""

import json
from typing import Any

import yaml

from tests.chart.conftest import CHART, Render
from tests.chart.manifests import container, find, kinds, pod_labels

ALERTS = yaml.safe_load((CHART / "files/alerts.yaml").read_text())
DASHBOARDS = sorted((CHART / "files/dashboards").glob("*.json"))


def alerts(manifest: dict[str, Any]) -> dict[str, Any]:
    return {rule["alert"]: rule for group in manifest["spec"]["groups"] for rule in group["rules"]}


FILE_ALERTS = alerts({"spec": ALERTS})


def test_nothing_is_made_for_an_operator_that_may_not_be_there(render: Render) -> None:
    assert kinds(render({})) == {"Deployment", "Service", "Pod"}


def test_each_pod_is_scraped_once(render: Render) -> None:
    """Both services lead to the same pods: a monitor of both would count everything twice."""
    manifests = render({"monitoring": {"scrape": "service"}})
    monitor = find(manifests, "ServiceMonitor")["spec"]
    wanted = monitor["selector"]["matchLabels"]
    services = [m for m in manifests if m["kind"] == "Service"]
    [service] = [s for s in services if wanted.items() <= s["metadata"]["labels"].items()]
    assert service["metadata"]["name"] == "demo-octavo-headless"
    [endpoint] = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_a_pod_monitor_finds_the_pods_and_their_port(render: Render) -> None:
    manifests = render({"monitoring": {"scrape": "pod", "interval": "5s"}})
    monitor = find(manifests, "PodMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= pod_labels(manifests).items()
    [endpoint] = monitor["podMetricsEndpoints"]
    assert endpoint["interval"] == "5s"
    ports = {port["name"] for port in container(manifests, "scheduler")["ports"]}
    assert endpoint["port"] in ports


def test_the_job_is_called_as_the_alerts_expect(render: Render) -> None:
    for scrape, kind in (("service", "ServiceMonitor"), ("pod", "PodMonitor")):
        manifests = render({"monitoring": {"scrape": scrape}, "nameOverride": "llm"})
        label = find(manifests, kind)["spec"]["jobLabel"]
        assert pod_labels(manifests)[label] == "octavo"
        assert find(manifests, "Service", "demo-llm")["metadata"]["labels"][label] == "octavo"
    assert 'job="octavo"' in FILE_ALERTS["OctavoDown"]["expr"]


def test_the_rule_holds_the_alerts_as_they_are_tested(render: Render) -> None:
    manifests = render({"monitoring": {"rules": {"enabled": True}, "labels": {"release": "p"}}})
    rule = find(manifests, "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "p"
    assert alerts(rule) == FILE_ALERTS


def test_alerts_can_be_left_out_labelled_and_linked(render: Render) -> None:
    rules = {
        "enabled": True,
        "disabled": ["OctavoQueueAge"],
        "labels": {"team": "inference"},
        "runbookUrl": "https://example.com/runbook.md",
    }
    found = alerts(find(render({"monitoring": {"rules": rules}}), "PrometheusRule"))
    assert found.keys() == FILE_ALERTS.keys() - {"OctavoQueueAge"}
    down = found["OctavoDown"]
    assert down["labels"] == {"severity": "critical", "team": "inference"}
    assert down["annotations"]["runbook_url"] == "https://example.com/runbook.md#octavodown"


def test_dashboards_reach_grafana_unchanged(render: Render) -> None:
    manifests = render({"monitoring": {"dashboards": {"enabled": True}}})
    config_map = find(manifests, "ConfigMap", "demo-octavo-dashboards")
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert DASHBOARDS
    for path in DASHBOARDS:
        assert json.loads(config_map["data"][f"octavo-{path.name}"]) == json.loads(path.read_text())
