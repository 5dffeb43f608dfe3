"""Pods of the chart for rehearsals: small, quick to start, on ports of their own."""

import itertools
import random
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chart.conftest import Render
from tests.chart.local_pod import LocalPod
from tests.chart.manifests import pod
from tests.fakes.checkpoints import make_tiny_checkpoint


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


def free_ports(num_pods: int) -> list[dict[str, int]]:
    """Ports for pods that share this machine, free again while a pod restarts.

    They lie below the range from which the system takes ports for outgoing connections.
    """
    names = ("grpc", "metrics", "admin")
    candidates = random.sample(range(20_000, 32_000), 500)
    free = itertools.islice(filter(is_free, candidates), len(names) * num_pods)
    ports = list(free)
    return [dict(zip(names, ports[i::num_pods], strict=True)) for i in range(num_pods)]


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
