"""Adds up the snapshots of all processes into one set of samples. Counts nothing itself.

Counters and histograms of a process that was restarted go on from what its earlier incarnations
counted, so that no series ever falls. Gauges are the living processes' only.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from octavo.internal.v1 import control_pb2 as control
from scheduler_svc.metrics.catalog import CATALOG, MetricSpec

SeriesKey = tuple[str, tuple[str, ...]]
PREFIX = "octavo_"


@dataclass(slots=True)
class Totals:
    """One series' sum: a number, or bucket counts and a sum."""

    value: float = 0.0
    counts: list[int] = field(default_factory=list)

    def add(self, reading: control.Reading) -> None:
        """Adds what one process read."""
        kind = reading.WhichOneof("value")
        if kind == "histogram":
            self._add_counts(reading.histogram.counts)
            self.value += reading.histogram.sum
        else:
            self.value += reading.counter if kind == "counter" else reading.gauge

    def merge(self, other: "Totals") -> None:
        """Adds another sum."""
        self._add_counts(other.counts)
        self.value += other.value

    def _add_counts(self, counts: Sequence[int]) -> None:
        self.counts += [0] * (len(counts) - len(self.counts))
        for index, count in enumerate(counts):
            self.counts[index] += count


class SnapshotStore(Collector):
    """The latest snapshot of each process; a collector for a Prometheus registry."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: dict[str, tuple[int, control.Snapshot]] = {}
        self._retired: dict[SeriesKey, Totals] = {}

    def put(self, name: str, incarnation: int, snapshot: control.Snapshot) -> None:
        """Takes a process's snapshot; another incarnation than before retires the earlier one."""
        with self._lock:
            known = self._latest.get(name)
            if known is not None and known[0] != incarnation:
                self._retire(known[1])
            self._latest[name] = (incarnation, snapshot)

    def gauge(self, name: str) -> float:
        """A gauge's value over all processes and labels; 0 while nobody reported it."""
        with self._lock:
            return sum(
                reading.gauge
                for _, snapshot in self._latest.values()
                for reading in snapshot.readings
                if reading.name == name
            )

    def totals_of(self, name: str) -> Totals:
        """A counter's or histogram's sum over all processes, their earlier ones and all labels."""
        whole = Totals()
        with self._lock:
            for (known, _), total in self._retired.items():
                if known == name:
                    whole.merge(total)
            for _, snapshot in self._latest.values():
                for reading in snapshot.readings:
                    if reading.name == name:
                        whole.add(reading)
        return whole

    def collect(self) -> Iterator[Metric]:
        """Every metric of the catalog that has a series."""
        totals = self._totals()
        for name, spec in CATALOG.items():
            series = {labels: t for (n, labels), t in totals.items() if n == name}
            if series:
                yield _family(name, spec, series)

    def _retire(self, snapshot: control.Snapshot) -> None:
        for reading in snapshot.readings:
            if reading.WhichOneof("value") != "gauge":
                key = (reading.name, tuple(reading.labels))
                self._retired.setdefault(key, Totals()).add(reading)

    def _totals(self) -> dict[SeriesKey, Totals]:
        with self._lock:
            totals = {
                key: Totals(value=total.value, counts=list(total.counts))
                for key, total in self._retired.items()
            }
            for _, snapshot in self._latest.values():
                for reading in snapshot.readings:
                    key = (reading.name, tuple(reading.labels))
                    totals.setdefault(key, Totals()).add(reading)
        return totals


def _family(
    name: str, spec: MetricSpec, series: dict[tuple[str, ...], Totals]
) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    full = PREFIX + name
    if spec.kind == "histogram":
        histogram = HistogramMetricFamily(full, spec.help, labels=spec.labels)
        for labels, total in sorted(series.items()):
            histogram.add_metric(labels, _buckets(spec, total), total.value)
        return histogram
    family = (CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily)(
        full, spec.help, labels=spec.labels
    )
    for labels, total in sorted(series.items()):
        family.add_metric(labels, total.value)
    return family


def _buckets(spec: MetricSpec, total: Totals) -> list[tuple[str, float]]:
    borders = [*(f"{border:g}" for border in spec.buckets), "+Inf"]
    cumulative, buckets = 0, []
    for border, count in zip(borders, total.counts, strict=True):
        cumulative += count
        buckets.append((border, float(cumulative)))
    return buckets
