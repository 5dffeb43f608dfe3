"""What happened lately, out of totals that only grow."""

import pytest

from octavo.internal.v1 import control_pb2 as control
from scheduler_svc.metrics.exporter import SnapshotStore
from scheduler_svc.metrics.readings import Counter, Histogram, render_all
from scheduler_svc.metrics.recent import RecentTraffic, quantile


class Frontend:
    """A process that counts."""

    def __init__(self, store: SnapshotStore, *, incarnation: int = 1) -> None:
        self._store = store
        self._incarnation = incarnation
        self._tokens = Counter("generation_tokens")
        self._first = Histogram("time_to_first_token_seconds")
        self._whole = Histogram("e2e_request_latency_seconds")

    def serve(self, *, tokens: float, first_s: tuple[float, ...] = ()) -> None:
        """Counts and tells it."""
        self._tokens.add(tokens)
        for seconds in first_s:
            self._first.observe(seconds)
            self._whole.observe(2 * seconds)
        readings = render_all([self._tokens, self._first, self._whole])
        self._store.put("frontend-0", self._incarnation, control.Snapshot(readings=readings))


def test_rates_and_times_are_those_of_the_window_and_not_of_all_time() -> None:
    store = SnapshotStore()
    frontend, recent = Frontend(store), RecentTraffic(store)
    frontend.serve(tokens=1e6, first_s=(5.0,) * 100)
    recent.read(100.0)
    frontend.serve(tokens=300, first_s=(0.015,) * 20)
    seen = recent.read(110.0)
    assert (seen.window_s, seen.generated_tokens_per_s) == (10.0, 30.0)
    assert (seen.first_token.count, seen.requests_per_s) == (20, 2.0)
    assert 0.01 < seen.first_token.p50_s < seen.first_token.p99_s <= 0.02
    assert seen.inter_token.count == 0


def test_what_is_older_than_the_window_is_forgotten() -> None:
    store = SnapshotStore()
    frontend, recent = Frontend(store), RecentTraffic(store)
    seen = recent.read(0.0)
    for second in range(60):
        frontend.serve(tokens=100 if second < 30 else 0)
        seen = recent.read(float(second))
    assert seen.generated_tokens_per_s == 0.0
    assert 14.0 <= seen.window_s <= 17.0


def test_a_process_that_was_restarted_takes_nothing_back() -> None:
    store = SnapshotStore()
    recent = RecentTraffic(store)
    Frontend(store).serve(tokens=500, first_s=(0.1,))
    recent.read(0.0)
    Frontend(store, incarnation=2).serve(tokens=40, first_s=(0.1,))
    seen = recent.read(4.0)
    assert (seen.generated_tokens_per_s, seen.first_token.count) == (10.0, 1)


def test_nothing_at_all_is_all_zeros() -> None:
    recent = RecentTraffic(SnapshotStore())
    assert recent.read(5.0).window_s == 0.0
    assert recent.read(6.0).generated_tokens_per_s == 0.0


def test_a_quantile_lies_in_the_bucket_of_its_rank() -> None:
    borders = (1.0, 2.0, 4.0)
    assert quantile(0.5, [0, 10, 0, 0], borders) == pytest.approx(1.5)
    assert quantile(0.99, [98, 0, 2, 0], borders) == pytest.approx(3.0)
    assert quantile(0.5, [0, 0, 0, 3], borders) == 4.0  # above every border: at least this
    assert quantile(0.5, [0, 0, 0, 0], borders) == 0.0
