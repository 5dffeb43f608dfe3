"""Two equal tenants, one of which floods: what each gets while both want more than there is."""

from dataclasses import dataclass, replace

import numpy as np

from bench.simulator import traces
from bench.simulator.experiment import Outcome, Setup, run

STEADY, FLOODING = "steady", "flooding"


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFigures:
    """One tenant."""

    share: float  # of all tokens computed, prompts and answers
    num_refused: int
    ttft_p50_ms: float
    ttft_p99_ms: float


def two_tenants(
    setup: Setup, *, flood_rate: float, steady_rate: float, seconds: float
) -> tuple[dict[str, TenantFigures], Outcome]:
    """Both send at random moments from the start on; measured are all the seconds."""
    trace = traces.merged(
        traces.poisson(rate=flood_rate, seconds=seconds, seed=1, tenant=FLOODING),
        traces.poisson(rate=steady_rate, seconds=seconds, seed=2, tenant=STEADY),
    )
    outcome = run(replace(setup, num_replicas=1), trace, measures_until_s=seconds)
    return {name: _figures(outcome, name) for name in (STEADY, FLOODING)}, outcome


def _figures(outcome: Outcome, tenant: str) -> TenantFigures:
    recorder = outcome.recorder
    num_tokens = {
        name: count.num_prompt_tokens + count.num_generated_tokens
        for name, count in recorder.tenants.items()
    }
    ttft_ms = [
        1e3 * (recorder.first_s[each.job.number] - each.arrived_s)
        for each in recorder.served
        if each.job.conversation.tenant == tenant and recorder.num_tokens[each.job.number]
    ]
    return TenantFigures(
        share=num_tokens[tenant] / sum(num_tokens.values()),
        num_refused=recorder.tenants[tenant].num_refused,
        ttft_p50_ms=float(np.percentile(ttft_ms, 50)),
        ttft_p99_ms=float(np.percentile(ttft_ms, 99)),
    )
