"""promtool as a function, and the files that operators get. Knows nothing of their content."""

import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from octavo.internal.v1 import control_pb2 as control
from scheduler_svc.metrics.catalog import CATALOG, MetricSpec
from scheduler_svc.metrics.exporter import SnapshotStore
from scheduler_svc.metrics.readings import Counter, Gauge, Histogram, render_all
from tools import fetch_prometheus

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "helm/octavo/files"
ALERTS = FILES / "alerts.yaml"


def promtool(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """A promtool command, with its output."""
    return subprocess.run(
        [str(fetch_prometheus.program("promtool")), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture(scope="session")
def whole_catalog() -> str:
    """`/metrics` of a replica that has a series of every metric."""
    store = SnapshotStore()
    readings = render_all([one_value(name, spec) for name, spec in CATALOG.items()])
    store.put("core", 1, control.Snapshot(readings=readings))
    registry = CollectorRegistry()
    registry.register(store)
    return generate_latest(registry).decode()


def one_value(name: str, spec: MetricSpec) -> Counter | Gauge | Histogram:
    labels = ["x"] * len(spec.labels)
    if spec.kind == "counter":
        counter = Counter(name)
        counter.add(1.0, *labels)
        return counter
    if spec.kind == "gauge":
        gauge = Gauge(name)
        gauge.set(1.0, *labels)
        return gauge
    histogram = Histogram(name)
    histogram.observe(1.0, *labels)
    return histogram
