"""`/metrics` of a replica as numbers, by series. Knows no meaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.replica import Replica, wait_until

Series = tuple[str, tuple[tuple[str, str], ...]]
# processes report once a second
SNAPSHOT_LIMIT_S = 15.0


@dataclass(frozen=True)
class Scrape:
    """One answer; series that only grow are told apart."""

    values: dict[Series, float]
    growing: frozenset[Series]

    def value(self, name: str, **labels: str) -> float:
        """A series' value; 0 while it is not there."""
        return self.values.get((name, tuple(sorted(labels.items()))), 0.0)

    def total(self, name: str) -> float:
        """The sum over all labels."""
        return sum(value for (series, _), value in self.values.items() if series == name)


def scrape(replica: Replica) -> Scrape:
    """The present values. Scenario MET-04: no series comes twice."""
    status, text = replica.get("/metrics")
    assert status == 200
    values: dict[Series, float] = {}
    growing = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in values, f"twice: {key}"
            values[key] = sample.value
            if family.type != "gauge":
                growing.add(key)
    return Scrape(values, frozenset(growing))


def scraped_when(replica: Replica, condition: Callable[[Scrape], bool]) -> Scrape:
    """The first scrape for which it holds; fails with the last one when that takes too long."""
    seen = [scrape(replica)]

    def holds() -> bool:
        seen[0] = scrape(replica)
        return condition(seen[0])

    wait_until(holds, limit_s=SNAPSHOT_LIMIT_S, otherwise=lambda: str(seen[0].values))
    return seen[0]
