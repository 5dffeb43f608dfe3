"""Runs that differ in one policy, to choose its default by. Knows no default.

Each returns the numbers that the policy trades against each other.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from bench.simulator import traces
from bench.simulator.cost import QWEN3_0_6B, QWEN3_8B
from bench.simulator.experiment import Outcome, Setup, run
from bench.simulator.long_prompt import long_prompt
from bench.simulator.recorder import Served

Figures = dict[str, float]

# Two thirds of what one GPU can take.
_STEADY_RATE = {QWEN3_0_6B.name: 32.0, QWEN3_8B.name: 12.0}
_LONG_TOKENS = 20_000
_URGENT, _PATIENT = 0, 2


def shared_steps(setup: Setup, *, seconds: float = 200.0) -> Figures:
    """How prompts share steps with streams: a long prompt, steady arrivals, bursts, all at once."""
    rate = _STEADY_RATE[setup.shape.name]
    figures, _ = long_prompt(setup)
    steady = run(setup, traces.poisson(rate=rate, seconds=seconds, seed=1)).summary
    burst = traces.bursts(rate=rate / 3, burst=40, every_s=8.0, seconds=seconds, seed=1)
    bursts = run(setup, burst).summary
    at_once = run(setup, traces.batch(num_requests=256, seed=0)).summary
    return {
        "long_ttft_ms": figures.prompt_ttft_ms,
        "long_p99_ratio": figures.p99_ratio,
        "ttft_p50_ms": steady.ttft_p50_ms,
        "ttft_p99_ms": steady.ttft_p99_ms,
        "itl_p50_ms": steady.itl_p50_ms,
        "itl_p99_ms": steady.itl_p99_ms,
        "burst_ttft_p99_ms": bursts.ttft_p99_ms,
        "burst_itl_p99_ms": bursts.itl_p99_ms,
        "batch_tokens_per_s": at_once.output_tokens_per_s,
    }


def passing(setup: Setup, *, seconds: float = 60.0) -> Figures:
    """Documents that do not fit into memory at once, among short requests that do."""
    trace = traces.merged(
        traces.documents(rate=0.25, seconds=seconds, seed=1, num_prompt_tokens=_LONG_TOKENS),
        traces.poisson(rate=14.0, seconds=seconds, seed=2),
    )
    outcome = run(replace(setup, num_blocks=6000), trace)
    long_ms = _ttft_ms(outcome, lambda each: each.job.num_prompt_tokens == _LONG_TOKENS)
    short_ms = _ttft_ms(outcome, lambda each: each.job.num_prompt_tokens < _LONG_TOKENS)
    return {
        "long_ttft_p50_ms": float(np.percentile(long_ms, 50)),
        "long_ttft_max_ms": max(long_ms),
        "short_ttft_p50_ms": float(np.percentile(short_ms, 50)),
        "short_ttft_p99_ms": float(np.percentile(short_ms, 99)),
        "output_tokens_per_s": outcome.summary.output_tokens_per_s,
        "num_preemptions": outcome.summary.num_preemptions,
    }


def ageing(setup: Setup, *, seconds: float = 180.0) -> Figures:
    """Urgent requests that fit, and more patient ones than fit beside them; the second half."""
    trace = traces.merged(
        traces.poisson(rate=10.0, seconds=seconds, seed=1, priority=_URGENT),
        traces.poisson(rate=12.0, seconds=seconds, seed=2, priority=_PATIENT),
    )
    small = replace(setup, max_num_seqs=128)
    half = seconds / 2
    outcome = run(small, trace, measures_from_s=half, measures_until_s=seconds)

    def is_of(priority: int) -> Callable[[Served], bool]:
        return lambda each: each.job.conversation.priority == priority and each.arrived_s > half

    urgent_ms, patient_ms = _ttft_ms(outcome, is_of(_URGENT)), _ttft_ms(outcome, is_of(_PATIENT))
    return {
        "urgent_ttft_p50_ms": float(np.percentile(urgent_ms, 50)),
        "urgent_ttft_p99_ms": float(np.percentile(urgent_ms, 99)),
        "num_urgent_begun": len(urgent_ms),
        "num_patient_begun": len(patient_ms),
        "output_tokens_per_s": outcome.summary.output_tokens_per_s,
    }


def _ttft_ms(outcome: Outcome, is_chosen: Callable[[Served], bool]) -> list[float]:
    recorder = outcome.recorder
    return [
        1e3 * float(recorder.first_s[each.job.number] - each.arrived_s)
        for each in recorder.served
        if is_chosen(each) and recorder.num_tokens[each.job.number]
    ]
