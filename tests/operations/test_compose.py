"""The compose file: its services fit together, and together with what they mount."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_svc.config import parse_flags
from tests.operations.conftest import ALERTS, FILES, ROOT, promtool
from worker_svc.config import parse_flags as parse_worker_flags

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("model", "worker", "scheduler")


def with_defaults(text: str) -> str:
    """Variables replaced by their defaults."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def flags(name: str) -> list[str]:
    return [with_defaults(flag) for flag in SERVICES[name]["command"]]


def mounts(name: str) -> dict[str, str]:
    """Sources by target."""
    parts = [volume.split(":") for volume in SERVICES[name]["volumes"]]
    return {part[1]: part[0] for part in parts}


def test_scheduler_and_worker_understand_their_flags_and_meet() -> None:
    scheduler = parse_flags(flags("scheduler"), program="scheduler_svc")
    worker = parse_worker_flags(flags("worker"), program="worker_svc")
    assert scheduler.workers == "external"
    for name in ("model", "run_dir", "device", "max_model_len", "block_size"):
        assert getattr(scheduler, name) == getattr(worker, name)
    for place in ("/run/octavo", "/var/cache/octavo"):
        assert mounts("scheduler")[place] == mounts("worker")[place]
    assert scheduler.run_dir.startswith("/run/octavo/")
    assert mounts("model")["/var/cache/octavo"] == mounts("worker")["/var/cache/octavo"]


def test_the_model_is_linked_where_both_services_look(tmp_path: Path) -> None:
    """The command of the model's service, with a stand-in for `octavo models pull`."""
    (tmp_path / "octavo").write_text('#!/bin/sh\n[ "$1 $2" = "models pull" ] && echo "/at/$3"\n')
    (tmp_path / "octavo").chmod(0o755)
    shell, option, script = SERVICES["model"]["entrypoint"]
    link = next(flag for flag in flags("worker") if flag.startswith("--model="))[8:]
    here = tmp_path / "link"
    command = [shell, option, script.replace("$$", "$").replace(link, str(here)), *flags("model")]
    for _ in range(2):  # the volume outlives the container
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        subprocess.run(command, env={"PATH": path}, check=True, timeout=60)
        assert here.readlink() == Path("/at/smollm2-135m-instruct")


def test_streams_may_end_before_anything_is_killed() -> None:
    """Scenario SIG-02. Compose stops a service before those it depends on."""
    limit = parse_flags(flags("scheduler"), program="scheduler_svc").drain_limit
    assert int(SERVICES["scheduler"]["stop_grace_period"].removesuffix("s")) > limit
    assert "worker" in SERVICES["scheduler"]["depends_on"]
    assert "scheduler" not in SERVICES["worker"]["depends_on"]


@pytest.mark.parametrize("name", OURS)
def test_our_services_hold_no_privilege(name: str) -> None:
    service = SERVICES[name]
    assert service["user"] == "10001:10001"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_what_is_mounted_or_built_exists() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source
            else:
                assert source in COMPOSE["volumes"]
        if "build" in service:
            context = DEPLOY / service["build"]["context"]
            text = (context / service["build"]["dockerfile"]).read_text()
            if "target" in service["build"]:
                assert f" AS {service['build']['target']}\n" in text


def test_ports_are_open_on_this_machine_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_gpu_file_changes_services_that_exist() -> None:
    gpu = yaml.safe_load((DEPLOY / "compose.gpu.yaml").read_text())["services"]
    assert gpu.keys() <= SERVICES.keys()
    assert f" AS {gpu['worker']['build']['target']}\n" in (DEPLOY / "worker.Dockerfile").read_text()


def test_prometheus_accepts_its_configuration_and_scrapes_the_scheduler(tmp_path: Path) -> None:
    text = (DEPLOY / "prometheus.yaml").read_text()
    inside = "/etc/prometheus/alerts.yaml"
    assert mounts("prometheus")[inside] == f"../{ALERTS.relative_to(ROOT)}"
    file = tmp_path / "prometheus.yaml"
    file.write_text(text.replace(inside, str(ALERTS)))
    done = promtool("check", "config", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    [job] = yaml.safe_load(text)["scrape_configs"]
    port = parse_flags(flags("scheduler"), program="scheduler_svc").metrics_port
    assert job["static_configs"] == [{"targets": [f"scheduler:{port}"]}]
    assert 'up{job="octavo"}' in ALERTS.read_text()
    assert job["job_name"] == "octavo"


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    [source] = yaml.safe_load((DEPLOY / "grafana/datasources.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["isDefault"] is True
    [provider] = yaml.safe_load((DEPLOY / "grafana/dashboards.yaml").read_text())["providers"]
    place = provider["options"]["path"]
    assert mounts("grafana")[place] == f"../{FILES.relative_to(ROOT)}/dashboards"
