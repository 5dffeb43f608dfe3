"""Metric objects render to what the exporter adds up."""

import pytest

from octavo.internal.v1 import control_pb2 as control
from scheduler_svc.metrics.catalog import CATALOG
from scheduler_svc.metrics.readings import Counter, Gauge, Histogram, render_all


def test_counter_adds_by_label() -> None:
    counter = Counter("requests_rejected")
    counter.add(1, "draining")
    counter.add(2, "draining")
    counter.add(1, "queue_full")
    assert {r.labels[0]: r.counter for r in counter.render()} == {"draining": 3, "queue_full": 1}


def test_gauge_keeps_the_last_value_and_forgets_when_cleared() -> None:
    gauge = Gauge("worker_up")
    gauge.set(1, "0")
    gauge.set(0, "0")
    assert gauge.render() == [control.Reading(name="worker_up", labels=["0"], gauge=0)]
    gauge.clear()
    assert gauge.render() == []


def test_histogram_counts_borders_in_the_bucket_below() -> None:
    histogram = Histogram("inter_token_latency_seconds")
    borders = CATALOG["inter_token_latency_seconds"].buckets
    for value in (borders[0], borders[0] * 1.5, 1e9):
        histogram.observe(value)
    (reading,) = histogram.render()
    assert list(reading.histogram.counts) == [1, 1] + [0] * (len(borders) - 2) + [1]
    assert reading.histogram.sum == pytest.approx(1e9 + borders[0] * 2.5)


def test_metric_must_be_in_the_catalog_with_its_kind_and_labels() -> None:
    with pytest.raises(KeyError):
        Counter("unheard_of")
    with pytest.raises(AssertionError):
        Gauge("num_preemptions")
    with pytest.raises(AssertionError):
        Counter("requests_rejected").add(1)


def test_render_all_joins_metrics() -> None:
    preemptions = Counter("num_preemptions")
    preemptions.set_total(4)
    running = Gauge("num_requests_running")
    running.set(2)
    names = [reading.name for reading in render_all([preemptions, running])]
    assert names == ["num_preemptions", "num_requests_running"]


def test_histograms_have_ascending_borders() -> None:
    for name, spec in CATALOG.items():
        assert list(spec.buckets) == sorted(set(spec.buckets)), name
        assert bool(spec.buckets) == (spec.kind == "histogram"), name


def test_histograms_of_times_tell_milliseconds_apart() -> None:
    for name, spec in CATALOG.items():
        if spec.kind == "histogram" and name.endswith("_seconds"):
            assert spec.buckets[0] == 0.001, name
