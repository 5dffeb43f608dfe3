"""What the replica did in the last seconds, from the totals that its processes report anyway.

Costs nothing where requests are served: it subtracts an earlier total from the present one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_svc.metrics.catalog import CATALOG
from scheduler_svc.metrics.exporter import SnapshotStore, Totals

_WINDOW_S = 15.0
_SAMPLE_INTERVAL_S = 1.0
_FIRST_TOKEN = "time_to_first_token_seconds"
_INTER_TOKEN = "inter_token_latency_seconds"
_ENDED = "e2e_request_latency_seconds"
_GENERATED = "generation_tokens"
_PROMPT = "prompt_tokens"
_NAMES = (_FIRST_TOKEN, _INTER_TOKEN, _ENDED, _GENERATED, _PROMPT)


@dataclass(frozen=True, slots=True)
class Times:
    """A measured time, in seconds; zeros where nothing was measured."""

    count: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """One reading."""

    window_s: float = 0.0
    generated_tokens_per_s: float = 0.0
    prompt_tokens_per_s: float = 0.0
    requests_per_s: float = 0.0
    first_token: Times = field(default_factory=Times)
    inter_token: Times = field(default_factory=Times)


class RecentTraffic:
    """Looks back over a window that moves with each `read`."""

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        self._samples: deque[tuple[float, dict[str, Totals]]] = deque()

    def read(self, now: float) -> Recent:
        """What happened since the oldest sample that the window still holds."""
        totals = {name: self._store.totals_of(name) for name in _NAMES}
        if not self._samples or now - self._samples[-1][0] >= _SAMPLE_INTERVAL_S:
            self._samples.append((now, totals))
        while len(self._samples) > 1 and now - self._samples[1][0] >= _WINDOW_S:
            self._samples.popleft()
        began_at, before = self._samples[0]
        window_s = now - began_at
        if window_s <= 0:
            return Recent()

        def rate(name: str) -> float:
            return max(0.0, totals[name].value - before[name].value) / window_s

        return Recent(
            window_s=window_s,
            generated_tokens_per_s=rate(_GENERATED),
            prompt_tokens_per_s=rate(_PROMPT),
            requests_per_s=sum(_new_counts(before[_ENDED], totals[_ENDED])) / window_s,
            first_token=_times(_FIRST_TOKEN, before, totals),
            inter_token=_times(_INTER_TOKEN, before, totals),
        )


def _new_counts(before: Totals, now: Totals) -> list[int]:
    earlier = before.counts or [0] * len(now.counts)
    return [max(0, count - old) for count, old in zip(now.counts, earlier, strict=True)]


def _times(name: str, before: dict[str, Totals], now: dict[str, Totals]) -> Times:
    counts = _new_counts(before[name], now[name])
    borders = CATALOG[name].buckets
    return Times(
        count=sum(counts),
        p50_s=quantile(0.5, counts, borders),
        p99_s=quantile(0.99, counts, borders),
    )


def quantile(share: float, counts: Sequence[int], borders: Sequence[float]) -> float:
    """The value below which `share` of observations lie, linear within its bucket.

    `counts` has one more entry than `borders`, the last one without an upper border: there its
    lower border is all that is known. 0 without observations.
    """
    total = sum(counts)
    if not total:
        return 0.0
    wanted, so_far = share * total, 0
    for place, count in enumerate(counts):
        if count and so_far + count >= wanted:
            lower = borders[place - 1] if place else 0.0
            upper = borders[place] if place < len(borders) else lower
            return lower + (upper - lower) * (wanted - so_far) / count
        so_far += count
    return borders[-1]
