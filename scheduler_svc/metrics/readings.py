"""What one process counts: cheap objects that render to control.proto. Knows no transport and no
exporter.
"""

from bisect import bisect_left
from collections.abc import Sequence

from octavo.internal.v1 import control_pb2 as control
from scheduler_svc.metrics.catalog import CATALOG, Kind, MetricSpec


class Counter:
    """A total that only grows, for each set of label values."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._num_labels = len(_spec(name, "counter").labels)
        self._totals: dict[tuple[str, ...], float] = {}

    def add(self, amount: float = 1.0, *labels: str) -> None:
        """Counts `amount` more."""
        assert len(labels) == self._num_labels
        assert amount >= 0
        self._totals[labels] = self._totals.get(labels, 0.0) + amount

    def set_total(self, total: float, *labels: str) -> None:
        """Takes over a total that is counted elsewhere."""
        assert len(labels) == self._num_labels
        self._totals[labels] = total

    def render(self) -> list[control.Reading]:
        """One reading for each set of label values seen."""
        return [
            control.Reading(name=self._name, labels=labels, counter=total)
            for labels, total in self._totals.items()
        ]


class Gauge:
    """A present value, for each set of label values."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._num_labels = len(_spec(name, "gauge").labels)
        self._values: dict[tuple[str, ...], float] = {}

    def set(self, value: float, *labels: str) -> None:
        """Takes the present value."""
        assert len(labels) == self._num_labels
        self._values[labels] = value

    def clear(self) -> None:
        """Forgets all values."""
        self._values.clear()

    def render(self) -> list[control.Reading]:
        """One reading for each set of label values that has a value."""
        return [
            control.Reading(name=self._name, labels=labels, gauge=value)
            for labels, value in self._values.items()
        ]


class Histogram:
    """Observations counted by bucket, for each set of label values."""

    def __init__(self, name: str) -> None:
        spec = _spec(name, "histogram")
        self._name = name
        self._num_labels = len(spec.labels)
        self._borders = spec.buckets
        self._series: dict[tuple[str, ...], _Buckets] = {}

    def observe(self, value: float, *labels: str) -> None:
        """Counts one observation; a border belongs to the bucket below it."""
        assert len(labels) == self._num_labels
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = _Buckets(len(self._borders) + 1)
        series.counts[bisect_left(self._borders, value)] += 1
        series.sum += value

    def render(self) -> list[control.Reading]:
        """One reading for each set of label values seen."""
        return [
            control.Reading(
                name=self._name,
                labels=labels,
                histogram=control.Histogram(counts=series.counts, sum=series.sum),
            )
            for labels, series in self._series.items()
        ]


class _Buckets:
    __slots__ = ("counts", "sum")

    def __init__(self, num_buckets: int) -> None:
        self.counts = [0] * num_buckets
        self.sum = 0.0


def render_all(metrics: Sequence[Counter | Gauge | Histogram]) -> list[control.Reading]:
    """The readings of several metrics, for a Snapshot."""
    return [reading for metric in metrics for reading in metric.render()]


def _spec(name: str, kind: Kind) -> MetricSpec:
    spec = CATALOG[name]
    assert spec.kind == kind, f"{name} is a {spec.kind} in the catalog"
    return spec
