"""What the pod promises: its processes meet, start slowly, end in order, and hold no privilege."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from scheduler_svc.config import parse_flags
from tests.chart.conftest import VALUES, Helm, Render
from tests.chart.manifests import container, deployment, flags, mounts, pod, volumes
from worker_svc.config import parse_flags as parse_worker_flags


def test_scheduler_and_worker_meet_in_one_private_folder(render: Render) -> None:
    manifests = render({})
    folders = {flags(manifests, name)["run-dir"] for name in ("scheduler", "worker")}
    assert folders == {"/run/octavo/replica"}
    for name in ("scheduler", "worker"):
        assert mounts(manifests, name)["/run/octavo"] == "run"
    for name in ("run", "shm"):
        assert volumes(manifests)[name]["emptyDir"]["medium"] == "Memory"
    assert mounts(manifests, "worker")["/dev/shm"] == "shm"


@pytest.mark.parametrize("file", VALUES, ids=lambda file: file.stem)
def test_the_scheduler_understands_every_flag_it_gets(render: Render, file: Path) -> None:
    manifests = render(yaml.safe_load(file.read_text()))
    config = parse_flags(container(manifests, "scheduler")["args"], program="scheduler_svc")
    assert config.workers == "external"
    assert (config.host, config.port) == ("0.0.0.0", 50051)
    assert (config.metrics_host, config.metrics_port) == ("0.0.0.0", 9464)
    assert config.admin_host == "127.0.0.1"


@pytest.mark.parametrize("file", VALUES, ids=lambda file: file.stem)
def test_the_worker_understands_every_flag_it_gets(render: Render, file: Path) -> None:
    manifests = render(yaml.safe_load(file.read_text()))
    worker = parse_worker_flags(container(manifests, "worker")["args"], program="worker_svc")
    scheduler = parse_flags(container(manifests, "scheduler")["args"], program="scheduler_svc")
    for name in ("model", "run_dir", "tensor_parallel_size", "max_model_len", "max_num_seqs"):
        assert getattr(worker, name) == getattr(scheduler, name)


def test_a_model_without_a_volume_is_brought_for_both_containers(
    render: Render, tmp_path: Path
) -> None:
    manifests = render({})
    [init] = pod(manifests)["initContainers"]
    name, link = init["args"]
    assert name == flags(manifests, "scheduler")["served-model-name"] == "smollm2-135m-instruct"
    for container_name in ("scheduler", "worker"):
        assert flags(manifests, container_name)["model"] == link
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/config.json").write_text("{}")
    for _ in range(2):  # the pod's volume outlives a restarted init container
        program = [sys.executable, *init["command"][1:], "tiny", "link"]
        subprocess.run(program, cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "link").resolve() == tmp_path / "tiny"


def test_a_model_on_a_volume_is_brought_by_nobody(render: Render) -> None:
    assert "initContainers" not in pod(render({"model": {"name": "m", "hostPath": "/srv/m"}}))


def test_both_containers_serve_the_same_model_from_the_claim(render: Render) -> None:
    manifests = render({"model": {"name": "qwen3", "existingClaim": "models"}})
    for name in ("scheduler", "worker"):
        assert flags(manifests, name)["model"] == "/models/qwen3"
        assert mounts(manifests, name)["/models"] == "model"


def test_limits_of_the_engine_reach_both_containers(render: Render) -> None:
    manifests = render({"engineArgs": ["--max-model-len=8192", "--max-num-seqs=64"]})
    for name in ("scheduler", "worker"):
        assert flags(manifests, name)["max-model-len"] == "8192"
        assert flags(manifests, name)["max-num-seqs"] == "64"


def test_one_gpu_is_asked_for_each_rank(render: Render) -> None:
    manifests = render({"worker": {"device": "cuda", "tensorParallelSize": 4}})
    limits = container(manifests, "worker")["resources"]["limits"]
    assert limits == {"memory": "8Gi", "nvidia.com/gpu": 4}
    assert "nvidia.com/gpu" not in container(manifests, "scheduler")["resources"]["limits"]
    assert flags(manifests, "scheduler")["tensor-parallel-size"] == "4"


def test_no_gpu_is_asked_for_on_a_cpu(render: Render) -> None:
    assert container(render({}), "worker")["resources"]["limits"] == {"memory": "8Gi"}


def test_a_slow_model_load_is_never_killed_within_its_budget(render: Render) -> None:
    """Scenario HELM-02."""
    probe = container(render({"probes": {"startupSeconds": 601}}), "scheduler")["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 601


def test_readiness_means_ready_and_liveness_only_alive(render: Render) -> None:
    """Scenario HELM-03."""
    scheduler = container(render({}), "scheduler")
    assert scheduler["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert scheduler["livenessProbe"]["httpGet"]["path"] == "/healthz"
    by_grpc = container(render({"probes": {"readiness": "grpc"}}), "scheduler")
    assert by_grpc["readinessProbe"]["grpc"] == {"port": 50051}


def test_the_grace_period_covers_the_whole_drain(render: Render) -> None:
    """Scenario SIG-02."""
    drain = {"preStopSeconds": 7, "limitSeconds": 300, "marginSeconds": 13}
    manifests = render({"drain": drain})
    assert pod(manifests)["terminationGracePeriodSeconds"] == 320
    assert flags(manifests, "scheduler")["drain-limit"] == "300"
    assert container(manifests, "scheduler")["lifecycle"]["preStop"]["exec"]["command"] == [
        "sleep",
        "7",
    ]


def test_the_worker_outlives_the_scheduler_in_a_shutdown(render: Render) -> None:
    command = container(render({"ports": {"metrics": 9999}}), "worker")["lifecycle"]["preStop"][
        "exec"
    ]
    program = command["command"][2]
    compile(program, "preStop", "exec")
    assert "9999" in program


def test_one_replica_gives_its_gpu_back_before_its_successor_starts(render: Render) -> None:
    """Scenario HELM-05."""
    assert deployment(render({}))["strategy"] == {"type": "Recreate"}
    assert deployment(render({"replicas": 3}))["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
    }
    assert deployment(render({"replicas": 3, "strategy": "Recreate"}))["strategy"] == {
        "type": "Recreate"
    }


def test_everything_written_lies_on_a_volume_whatever_the_user(render: Render) -> None:
    """Scenario HELM-06."""
    manifests = render({"runAsUser": None, "fsGroup": None})
    security = pod(manifests)["securityContext"]
    assert security == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    for name in ("scheduler", "worker"):
        assert container(manifests, name)["securityContext"]["readOnlyRootFilesystem"] is True
        environment = {e["name"]: e.get("value", "") for e in container(manifests, name)["env"]}
        for variable in ("HOME", "OCTAVO_CACHE", "XDG_CACHE_HOME", "TMPDIR"):
            assert any(environment[variable].startswith(path) for path in mounts(manifests, name))


def test_a_large_user_id_keeps_all_its_digits(helm: Helm) -> None:
    """Scenario HELM-06: Helm reads numbers as floats, and would write 1.0008e+09."""
    manifests = helm.render({"runAsUser": 1000800000, "fsGroup": 1000800000})
    security = pod(manifests)["securityContext"]
    assert str(security["runAsUser"]) == str(security["fsGroup"]) == "1000800000"


def test_the_pod_meets_the_restricted_security_standard(render: Render) -> None:
    manifests = render({})
    assert pod(manifests)["securityContext"]["runAsNonRoot"] is True
    assert pod(manifests)["automountServiceAccountToken"] is False
    for name in ("scheduler", "worker"):
        assert container(manifests, name)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_clients_can_reach_one_address_or_every_pod(render: Render) -> None:
    """Scenario LB-01."""
    services = {m["metadata"]["name"]: m["spec"] for m in render({}) if m["kind"] == "Service"}
    assert services["demo-octavo"]["type"] == "ClusterIP"
    assert services["demo-octavo-headless"]["clusterIP"] == "None"
    for service in services.values():
        ports = {port["name"]: port for port in service["ports"]}
        assert ports["grpc"]["appProtocol"] == "kubernetes.io/h2c"


def test_services_select_the_pods(render: Render) -> None:
    manifests = render({"podLabels": {"team": "inference"}})
    labels = deployment(manifests)["template"]["metadata"]["labels"]
    selectors = [m["spec"]["selector"] for m in manifests if m["kind"] == "Service"]
    selectors.append(deployment(manifests)["selector"]["matchLabels"])
    assert all(selector.items() <= labels.items() for selector in selectors)
