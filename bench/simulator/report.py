"""The numbers of a run. Knows nothing of how they came about."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from bench.simulator.recorder import Recorder


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """What a request has to get, to count as good."""

    ttft_s: float = 1.0
    token_s: float = 0.05  # the mean between its tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run, measured between warm-up and end. Times in milliseconds."""

    num_requests: int
    num_refused: int
    ttft_p50_ms: float
    ttft_p95_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    itl_p95_ms: float
    itl_p99_ms: float
    itl_max_ms: float
    output_tokens_per_s: float
    goodput_per_s: float  # requests within the service level
    goodput_share: float  # of those that arrived, refused ones included
    hit_rate: float  # of prompt tokens
    jain: float  # of the tenants' computed tokens: 1 is equal, 1/n is all for one
    num_preemptions: int
    num_steps: int

    def as_dict(self) -> dict[str, float]:
        """By name."""
        return asdict(self)


def jain_index(shares: Iterable[float]) -> float:
    """Jain's fairness index of what each got; 1 for nobody."""
    values = np.fromiter(shares, np.float64)
    squares = float((values**2).sum())
    return float(values.sum()) ** 2 / (len(values) * squares) if squares else 1.0


def summarize(recorder: Recorder, *, seconds: float, level: ServiceLevel | None = None) -> Summary:
    """The numbers; `seconds` is how long was measured."""
    recorder.finish()
    level = level or ServiceLevel()
    window = recorder.window
    measured = [each for each in recorder.served if each.arrived_s in window]
    numbers = np.array([each.job.number for each in measured], np.intp)
    arrived = np.array([each.arrived_s for each in measured])
    first, last = recorder.first_s[numbers], recorder.last_s[numbers]
    counts = recorder.num_tokens[numbers]
    has_token = counts > 0
    ttft = (first - arrived)[has_token]
    token_s = (last - first)[has_token] / np.maximum(counts[has_token] - 1, 1)
    is_good = (ttft <= level.ttft_s) & (token_s <= level.token_s)
    begun = [each for each in measured if recorder.num_tokens[each.job.number]]
    num_prompt = sum(each.job.num_prompt_tokens for each in begun)
    tenants = recorder.tenants.values()
    generated = sum(count.num_generated_tokens for count in tenants)
    ttft_percentiles = 1e3 * np.percentile(ttft, (50, 95, 99)) if len(ttft) else np.zeros(3)
    return Summary(
        num_requests=len(measured),
        num_refused=recorder.num_refused,
        ttft_p50_ms=float(ttft_percentiles[0]),
        ttft_p95_ms=float(ttft_percentiles[1]),
        ttft_p99_ms=float(ttft_percentiles[2]),
        itl_p50_ms=1e3 * recorder.gaps.percentile(50),
        itl_p95_ms=1e3 * recorder.gaps.percentile(95),
        itl_p99_ms=1e3 * recorder.gaps.percentile(99),
        itl_max_ms=1e3 * recorder.gaps.largest_s,
        output_tokens_per_s=generated / seconds,
        goodput_per_s=float(is_good.sum()) / seconds,
        goodput_share=float(is_good.sum()) / max(len(measured), 1),
        hit_rate=sum(each.num_cached for each in begun) / max(num_prompt, 1),
        jain=jain_index(count.num_prompt_tokens + count.num_generated_tokens for count in tenants),
        num_preemptions=recorder.num_preemptions,
        num_steps=recorder.num_steps,
    )
