"""Pods of the chart for rehearsals: small, quick to start, on ports of their own."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chart.conftest import Render
from tests.chart.local_pod import LocalPod
from tests.chart.manifests import pod
from tests.fakes.checkpoints import make_tiny_checkpoint
from tests.free_ports import free_ports


@contextmanager
def local_pod(render: Render, ports: dict[str, int]) -> Iterator[LocalPod]:
    """A pod, not started yet, whose steps take 20 ms; gone in the end."""
    values = {
        "model": {"name": "tiny", "hostPath": "/srv/models"},
        "ports": ports,
        "drain": {"preStopSeconds": 1, "limitSeconds": 25, "marginSeconds": 5},
        "worker": {"extraArgs": ["--step-ms=20"]},
    }
    # paths of sockets are short
    with tempfile.TemporaryDirectory(prefix="pod-") as folder:
        make_tiny_checkpoint(Path(folder) / "model/tiny", family="qwen3")
        made = LocalPod(pod(render(values)), Path(folder))
        try:
            yield made
        finally:
            made.end()


def pod_ports(num_pods: int) -> list[dict[str, int]]:
    """Ports for pods that share this machine."""
    names = ("grpc", "metrics", "admin")
    ports = free_ports(len(names) * num_pods)
    return [dict(zip(names, ports[i::num_pods], strict=True)) for i in range(num_pods)]
