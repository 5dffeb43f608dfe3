"""The numbers of a load: percentiles, throughput, goodput, errors. Draws nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo.bench.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Spread:
    """How a measured time is spread, in seconds; all 0 where nothing was measured."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0


@dataclass(frozen=True, slots=True)
class Objectives:
    """What a good request keeps to, in seconds; None is no objective."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def hold_for(self, outcome: Outcome) -> bool:
        """Whether a request that got all its tokens keeps to all of them."""
        pairs = (
            (self.ttft_s, outcome.ttft_s),
            (self.tpot_s, outcome.tpot_s),
            (self.e2e_s, outcome.e2e_s),
        )
        return all(limit is None or took <= limit for limit, took in pairs)


@dataclass(frozen=True, slots=True)
class Summary:
    """A load's numbers. Times are of requests that got all their tokens, failures are counted."""

    num_requests: int
    num_completed: int
    errors: Mapping[str, int]
    duration_s: float
    """From the load's begin to the last request's end."""
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    """Prompts' tokens counted too."""
    num_output_tokens: int
    ttft_s: Spread
    itl_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    goodput_per_s: float
    """Completed requests a second that kept to the objectives; all of them without objectives."""
    num_good: int
    sent_late_s: Spread
    """How late the generator itself was. More than a few milliseconds: it needs more processes."""


def summarize(outcomes: Sequence[Outcome], *, objectives: Objectives | None = None) -> Summary:
    """The numbers over all requests of a load."""
    done = [outcome for outcome in outcomes if not outcome.error]
    objectives = objectives or Objectives()
    num_good = sum(objectives.hold_for(outcome) for outcome in done)
    # nothing at all may have been sent
    duration_s = max((outcome.ended_at for outcome in outcomes), default=0.0) or 1e-9
    num_tokens = sum(outcome.num_tokens for outcome in done)
    return Summary(
        num_requests=len(outcomes),
        num_completed=len(done),
        errors=dict(Counter(one.error for one in outcomes if one.error).most_common()),
        duration_s=duration_s,
        requests_per_s=len(done) / duration_s,
        output_tokens_per_s=num_tokens / duration_s,
        total_tokens_per_s=(num_tokens + sum(one.num_prompt for one in done)) / duration_s,
        num_output_tokens=num_tokens,
        ttft_s=spread([one.ttft_s for one in done]),
        itl_s=spread([gap for one in done for gap in one.gaps_s]),
        tpot_s=spread([one.tpot_s for one in done if one.num_tokens > 1]),
        e2e_s=spread([one.e2e_s for one in done]),
        goodput_per_s=num_good / duration_s,
        num_good=num_good,
        sent_late_s=spread([one.sent_at - one.due_at for one in outcomes]),
    )


def spread(values: Sequence[float]) -> Spread:
    """Mean, percentiles and maximum."""
    if not values:
        return Spread()
    ranked = sorted(values)
    return Spread(
        mean=sum(ranked) / len(ranked),
        p50=percentile(ranked, 0.5),
        p90=percentile(ranked, 0.9),
        p95=percentile(ranked, 0.95),
        p99=percentile(ranked, 0.99),
        max=ranked[-1],
    )


def percentile(ranked: Sequence[float], share: float) -> float:
    """The value below which `share` of ranked values lie, by the nearest rank."""
    return ranked[min(len(ranked) - 1, round(share * (len(ranked) - 1)))]
