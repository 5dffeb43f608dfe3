"""Running streams, then one long prompt: how much slower the streams get meanwhile."""

from dataclasses import dataclass, replace

import numpy as np

from bench.simulator import traces
from bench.simulator.experiment import Outcome, Setup, run

ARRIVES_AT_S = 1.0
_JUDGED_BEFORE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPromptFigures:
    """Milliseconds. Gaps are those between the streams' tokens, before and while it is computed."""

    prompt_ttft_ms: float
    median_before_ms: float
    median_during_ms: float
    p99_during_ms: float
    max_during_ms: float

    @property
    def p99_ratio(self) -> float:
        """The 99th percentile meanwhile, in medians of before."""
        return self.p99_during_ms / self.median_before_ms


def long_prompt(
    setup: Setup, *, num_streams: int = 16, num_prompt_tokens: int = 30_000
) -> tuple[LongPromptFigures, Outcome]:
    """Streams run when a long prompt arrives."""
    trace = traces.merged(
        traces.streams(num_streams=num_streams, num_answer_tokens=3000, seed=1),
        traces.document(start_s=ARRIVES_AT_S, num_prompt_tokens=num_prompt_tokens, seed=2),
    )
    outcome = run(replace(setup, num_replicas=1), trace, keeps_gaps=True)
    return _figures(outcome), outcome


def _figures(outcome: Outcome) -> LongPromptFigures:
    recorder = outcome.recorder
    first_token_s = float(recorder.first_s[len(recorder.served)])
    before, during = (
        1e3
        * np.concatenate([each.gaps_s for each in recorder.gaps_at if from_s < each.at_s <= to_s])
        for from_s, to_s in (
            (ARRIVES_AT_S - _JUDGED_BEFORE_S, ARRIVES_AT_S),
            (ARRIVES_AT_S, first_token_s),
        )
    )
    return LongPromptFigures(
        prompt_ttft_ms=1e3 * (first_token_s - ARRIVES_AT_S),
        median_before_ms=float(np.median(before)),
        median_during_ms=float(np.median(during)),
        p99_during_ms=float(np.percentile(during, 99)),
        max_during_ms=float(during.max()),
    )
