"""What the core expects a first token to take, against what it then takes."""

import numpy as np
import pytest

from bench.simulator import traces
from bench.simulator.clock import Clock
from bench.simulator.cost import QWEN3_8B, StepCost
from bench.simulator.experiment import Setup
from bench.simulator.fleet import Fleet
from bench.simulator.jobs import Job
from bench.simulator.recorder import Recorder
from bench.simulator.replica import CoreReplica
from bench.simulator.router import ROUTERS
from scheduler_svc.core.estimate import Question

# By then enough answers of all lengths have ended.
_SETTLED_TOKENS = 50_000


class Asking(CoreReplica):
    """Asks for an estimate before each job."""

    def submit(self, job: Job) -> bool:
        question = Question(tenant=job.conversation.tenant, prompt=job.tokens())
        estimate = self.core.estimate(question)
        is_settled = self.core.counts().total_generated_tokens > _SETTLED_TOKENS
        if is_settled and estimate.first_token_s is not None:
            self.expected_s[job.number] = estimate.first_token_s
        return super().submit(job)

    expected_s: dict[int, float]


@pytest.mark.parametrize("max_num_seqs", [32, 64])
def test_where_slots_are_the_limit_waits_are_as_expected(max_num_seqs: int) -> None:
    setup = Setup(max_num_seqs=max_num_seqs)
    clock, recorder = Clock(), Recorder()
    fleet = Fleet(clock, recorder, ROUTERS["round-robin"](1))
    expected_s: dict[int, float] = {}

    def make(on_end: object) -> CoreReplica:
        replica = Asking(
            clock,
            StepCost(QWEN3_8B),
            recorder,
            policy=setup.policy,
            limits=setup.limits(),
            on_end=on_end,  # type: ignore[arg-type]  # as the fleet calls it
        )
        replica.expected_s = expected_s
        return replica

    fleet.add(make, count=1)
    fleet.play(traces.poisson(rate=20.0, seconds=30.0, seed=1))
    clock.run()
    ratios = [
        expected / (recorder.first_s[number] - recorder.served[number - 1].arrived_s)
        for number, expected in expected_s.items()
    ]
    assert len(ratios) > 100
    assert 0.75 < np.median(ratios) < 1.3
    assert np.percentile(ratios, 5) > 0.5
    assert np.percentile(ratios, 95) < 1.7
