"""One set of samples out of many processes' snapshots."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from octavo.internal.v1 import control_pb2 as control
from scheduler_svc.metrics.catalog import CATALOG
from scheduler_svc.metrics.exporter import SnapshotStore
from scheduler_svc.metrics.readings import Counter, Gauge, Histogram, render_all


def _snapshot(*, tokens: float, running: float, ttft_s: tuple[float, ...] = ()) -> control.Snapshot:
    counter, gauge = Counter("generation_tokens"), Gauge("num_requests_running")
    histogram = Histogram("time_to_first_token_seconds")
    counter.add(tokens)
    gauge.set(running)
    for value in ttft_s:
        histogram.observe(value)
    return control.Snapshot(readings=render_all([counter, gauge, histogram]))


def _samples(store: SnapshotStore) -> dict[tuple[str, str], float]:
    registry = CollectorRegistry()
    registry.register(store)
    text = generate_latest(registry).decode()
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, sample.labels.get("le", ""))
            assert key not in found, "a sample twice"
            found[key] = sample.value
    return found


def test_processes_add_up() -> None:
    store = SnapshotStore()
    store.put("frontend-0", 1, _snapshot(tokens=5, running=2))
    store.put("frontend-1", 2, _snapshot(tokens=7, running=1))
    samples = _samples(store)
    assert samples["octavo_generation_tokens_total", ""] == 12
    assert samples["octavo_num_requests_running", ""] == 3


def test_a_restart_lowers_no_counter_and_forgets_old_gauges() -> None:
    store = SnapshotStore()
    store.put("core", 1, _snapshot(tokens=5, running=9, ttft_s=(0.02, 3.0)))
    store.put("core", 2, _snapshot(tokens=1, running=4, ttft_s=(0.02,)))
    samples = _samples(store)
    assert samples["octavo_generation_tokens_total", ""] == 6
    assert samples["octavo_num_requests_running", ""] == 4
    assert samples["octavo_time_to_first_token_seconds_count", ""] == 3
    assert samples["octavo_time_to_first_token_seconds_bucket", "0.02"] == 2
    assert samples["octavo_time_to_first_token_seconds_bucket", "+Inf"] == 3


def test_a_snapshot_replaces_the_same_incarnations_earlier_one() -> None:
    store = SnapshotStore()
    for tokens in (3, 4):
        store.put("core", 1, _snapshot(tokens=tokens, running=0))
    assert _samples(store)["octavo_generation_tokens_total", ""] == 4


def test_every_metric_has_a_meaning_and_histograms_have_rising_buckets() -> None:
    for name, spec in CATALOG.items():
        assert spec.help, name
        assert (spec.kind == "histogram") == bool(spec.buckets), name
        assert list(spec.buckets) == sorted(set(spec.buckets)), name
