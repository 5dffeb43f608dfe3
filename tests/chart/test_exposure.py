"""Who reaches the pods, and how many may be away. Knows no gateway."""

from typing import Any

from tests.chart.conftest import Render
from tests.chart.manifests import container, find, pod, pod_labels

PARENTS = [{"name": "public"}]
POOL = {"enabled": True, "endpointPicker": {"name": "picker"}}


def test_a_route_leads_to_the_service_with_one_address(render: Render) -> None:
    manifests = render({"route": {"enabled": True, "parentRefs": PARENTS}, "ports": {"grpc": 5000}})
    spec = find(manifests, "GRPCRoute")["spec"]
    assert spec["parentRefs"] == PARENTS
    [backend] = spec["rules"][0]["backendRefs"]
    service = find(manifests, "Service", backend["name"])["spec"]
    assert service["type"] == "ClusterIP"
    assert backend["port"] in {port["port"] for port in service["ports"]}


def test_with_a_pool_the_route_leads_there(render: Render) -> None:
    values = {"route": {"enabled": True, "parentRefs": PARENTS}, "inferencePool": POOL}
    manifests = render(values)
    pool = find(manifests, "InferencePool")
    [backend] = find(manifests, "GRPCRoute")["spec"]["rules"][0]["backendRefs"]
    assert (backend["kind"], backend["name"]) == ("InferencePool", pool["metadata"]["name"])
    assert pool["spec"]["selector"]["matchLabels"].items() <= pod_labels(manifests).items()
    ports = {p["containerPort"] for p in container(manifests, "scheduler")["ports"]}
    assert pool["spec"]["targetPorts"][0]["number"] in ports
    assert pool["spec"]["appProtocol"] == "kubernetes.io/h2c"


def ingress(manifests: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]] | None]:
    rules = find(manifests, "NetworkPolicy")["spec"]["ingress"]
    return {rule["ports"][0]["port"]: rule.get("from") for rule in rules}


def test_a_network_policy_admits_the_two_ports_and_nothing_else(render: Render) -> None:
    manifests = render({"networkPolicy": {"enabled": True}})
    policy = find(manifests, "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= pod_labels(manifests).items()
    assert policy["policyTypes"] == ["Ingress"]
    assert ingress(manifests) == {"grpc": None, "metrics": None}
    assert "egress" not in policy


def test_chosen_callers_do_not_lock_out_the_charts_own_test(render: Render) -> None:
    products = {"namespaceSelector": {"matchLabels": {"team": "products"}}}
    manifests = render({"networkPolicy": {"enabled": True, "from": [products]}})
    own, other = ingress(manifests)["grpc"] or []
    assert other == products
    test = find(manifests, "Pod")["metadata"]["labels"]
    assert own["podSelector"]["matchLabels"].items() <= test.items()


def test_outgoing_traffic_can_be_names_only(render: Render) -> None:
    manifests = render({"networkPolicy": {"enabled": True, "restrictEgress": True}})
    policy = find(manifests, "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {53}


def test_evictions_take_one_pod_at_a_time_but_a_sick_one_always(render: Render) -> None:
    manifests = render({"replicas": 4, "podDisruptionBudget": {"enabled": True}})
    budget = find(manifests, "PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert budget["selector"]["matchLabels"].items() <= pod_labels(manifests).items()


def test_pods_of_a_release_spread_without_being_told_their_labels(render: Render) -> None:
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    manifests = render({"topologySpreadConstraints": [spread]})
    [constraint] = pod(manifests)["topologySpreadConstraints"]
    selector = constraint["labelSelector"]["matchLabels"]
    assert selector["app.kubernetes.io/instance"] == "demo"
    assert selector.items() <= pod_labels(manifests).items()


def test_the_test_pod_belongs_to_no_service(render: Render) -> None:
    manifests = render({})
    labels = find(manifests, "Pod")["metadata"]["labels"]
    selector = find(manifests, "Service", "demo-octavo")["spec"]["selector"]
    assert not selector.items() <= labels.items()
