"""What the scheduler promises, on small instances; the full runs are in the decision page.

Simulated time only: nothing here measures a clock.
"""

import pytest

from bench.simulator import traces
from bench.simulator.cost import QWEN3_0_6B, QWEN3_8B, ModelShape
from bench.simulator.experiment import CORE, FAST, Setup, run
from bench.simulator.long_prompt import long_prompt
from bench.simulator.report import Summary
from bench.simulator.two_tenants import FLOODING, STEADY, two_tenants
from scheduler_svc.core.limits import Policy


@pytest.mark.parametrize("shape", [QWEN3_0_6B, QWEN3_8B], ids=lambda shape: shape.name)
def test_streams_keep_within_two_median_steps_while_a_30k_prompt_is_computed(
    shape: ModelShape,
) -> None:
    figures, outcome = long_prompt(Setup(shape=shape))
    assert figures.p99_ratio <= 2.0
    assert outcome.recorder.num_tokens[len(outcome.recorder.served)] == 200


def test_equal_tenants_get_their_shares_though_one_floods() -> None:
    setup = Setup(max_num_seqs=64, policy=Policy(max_queue_requests=200))
    figures, outcome = two_tenants(setup, flood_rate=60.0, steady_rate=15.0, seconds=20.0)
    assert figures[STEADY].share == pytest.approx(0.5, rel=0.1)
    assert figures[FLOODING].share == pytest.approx(0.5, rel=0.1)
    assert outcome.summary.jain > 0.99


def test_a_tenant_below_its_share_hardly_waits_behind_a_flood() -> None:
    setup = Setup(max_num_seqs=64, policy=Policy(max_queue_requests=100_000))
    figures, _ = two_tenants(setup, flood_rate=60.0, steady_rate=2.0, seconds=20.0)
    assert figures[STEADY].ttft_p50_ms < 500
    assert figures[FLOODING].ttft_p50_ms > 5000


@pytest.mark.parametrize(
    ("kind", "num_replicas", "seconds"), [(CORE, 8, 12.0), (FAST, 64, 24.0)], ids=("core", "fast")
)
def test_prefix_aware_routing_at_least_doubles_the_hit_rate_of_round_robin(
    kind: str, num_replicas: int, seconds: float
) -> None:
    trace = traces.chat(rate=1.5 * num_replicas, seconds=seconds, seed=1)

    def hit_rate(router: str) -> float:
        setup = Setup(kind=kind, num_replicas=num_replicas, router=router)
        outcome = run(setup, trace, measures_from_s=seconds / 2, measures_until_s=seconds)
        return outcome.summary.hit_rate

    assert hit_rate("prefix") >= 2 * hit_rate("round-robin")


@pytest.mark.parametrize(
    ("shape", "num_blocks"),
    [(QWEN3_0_6B, 0), (QWEN3_8B, 0), (QWEN3_8B, 2000)],
    ids=("0.6B", "8B", "8B, little memory"),
)
def test_the_fast_replica_is_within_five_percent_of_the_core(
    shape: ModelShape, num_blocks: int
) -> None:
    trace = traces.chat(rate=12.0, seconds=12.0, seed=1, num_apps=20)

    def summary(kind: str) -> Summary:
        setup = Setup(
            shape=shape, kind=kind, num_replicas=4, router="prefix", num_blocks=num_blocks
        )
        return run(setup, trace, measures_from_s=4.0, measures_until_s=12.0).summary

    core, fast = summary(CORE), summary(FAST)
    for name in ("ttft_p50_ms", "itl_p50_ms", "output_tokens_per_s", "hit_rate"):
        assert getattr(fast, name) == pytest.approx(getattr(core, name), rel=0.05), name
    assert fast.num_requests == pytest.approx(core.num_requests, rel=0.02)
