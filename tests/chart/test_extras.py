"""What a user adds to the pods, and the other ways a model comes. Knows no cluster."""

from tests.chart.conftest import Render
from tests.chart.manifests import container, deployment, find, pod, pod_labels, volumes

HASH = "sha256:" + "a" * 64


def test_a_token_reaches_the_init_container_only(render: Render) -> None:
    model = {"name": "org/gated", "tokenSecret": {"name": "hub", "key": "t"}}
    manifests = render({"model": model})
    [init] = pod(manifests)["initContainers"]
    source = {"secretKeyRef": {"name": "hub", "key": "t"}}
    assert {"name": "HF_TOKEN", "valueFrom": source} in init["env"]
    for name in ("scheduler", "worker"):
        assert "HF_TOKEN" not in {e["name"] for e in container(manifests, name)["env"]}


def test_a_model_can_come_as_an_image(render: Render) -> None:
    manifests = render({"model": {"name": "q", "image": {"reference": "models/q:1"}}})
    assert volumes(manifests)["model"]["image"] == {
        "reference": "models/q:1",
        "pullPolicy": "IfNotPresent",
    }
    assert "--model=/models/q" in container(manifests, "worker")["args"]
    assert "initContainers" not in pod(manifests)


def test_downloads_can_outlive_the_pod(render: Render) -> None:
    cache = volumes(render({"volumes": {"cacheClaim": "models"}}))["cache"]
    assert cache == {"name": "cache", "persistentVolumeClaim": {"claimName": "models"}}
    assert volumes(render({}))["cache"]["emptyDir"] == {"sizeLimit": "20Gi"}


def test_a_digest_wins_over_a_tag(render: Render) -> None:
    image = {"repository": "r/octavo", "tag": "1", "digest": HASH}
    manifests = render({"worker": {"image": image}})
    assert container(manifests, "worker")["image"] == f"r/octavo@{HASH}"
    assert container(manifests, "scheduler")["image"] == "octavo-scheduler:0.1.0"


def test_own_containers_and_volumes_join_the_pod(render: Render) -> None:
    mount = {"name": "notes", "mountPath": "/notes"}
    manifests = render(
        {
            "extraVolumes": [{"name": "notes", "emptyDir": {}}],
            "extraInitContainers": [{"name": "first", "image": "i"}],
            "extraContainers": [{"name": "sidecar", "image": "i"}],
            "scheduler": {"extraVolumeMounts": [mount]},
            "worker": {"extraVolumeMounts": [mount]},
        }
    )
    assert volumes(manifests)["notes"]["emptyDir"] == {}
    assert [c["name"] for c in pod(manifests)["initContainers"]] == ["first", "model"]
    names = [c["name"] for c in pod(manifests)["containers"]]
    assert names == ["scheduler", "worker", "sidecar"]
    for name in ("scheduler", "worker"):
        assert mount in container(manifests, name)["volumeMounts"]


def test_own_objects_are_templates(render: Render) -> None:
    own = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "{{ .Release.Name }}-own"}}
    assert find(render({"extraObjects": [own]}), "Secret")["metadata"]["name"] == "demo-own"


def test_labels_for_all_reach_every_object_and_pods_may_differ(render: Render) -> None:
    labels = {"stage": "live", "team": "a"}
    manifests = render({"commonLabels": labels, "podLabels": {"team": "b"}})
    for manifest in manifests:
        if manifest["kind"] != "Pod":
            assert labels.items() <= manifest["metadata"]["labels"].items(), manifest["kind"]
    assert pod_labels(manifests)["stage"] == "live"
    assert pod_labels(manifests)["team"] == "b"
    assert "stage" not in deployment(manifests)["selector"]["matchLabels"]


def test_an_account_of_its_own_has_no_token_in_the_pods(render: Render) -> None:
    manifests = render({"serviceAccount": {"create": True, "annotations": {"role": "r"}}})
    account = find(manifests, "ServiceAccount")
    assert account["metadata"]["annotations"] == {"role": "r"}
    assert account["automountServiceAccountToken"] is False
    assert pod(manifests)["serviceAccountName"] == account["metadata"]["name"]
    assert pod(manifests)["automountServiceAccountToken"] is False
    assert pod(render({"serviceAccount": {"name": "x"}}))["serviceAccountName"] == "x"
