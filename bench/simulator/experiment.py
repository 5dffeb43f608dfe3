"""One run: a fleet set up, a trace played, what came of it. Knows no particular trace."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.simulator.clock import Clock
from bench.simulator.cost import QWEN3_8B, ModelShape, StepCost
from bench.simulator.fast_replica import FastReplica
from bench.simulator.fleet import Fleet, Replica
from bench.simulator.jobs import Conversation
from bench.simulator.prompts import VOCAB_SIZE
from bench.simulator.recorder import Recorder, Window
from bench.simulator.replica import CoreReplica
from bench.simulator.report import Summary, summarize
from bench.simulator.router import ROUTERS
from scheduler_svc.core.limits import Policy, WorkerLimits

CORE, FAST = "core", "fast"
REPLICA_KINDS = (CORE, FAST)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What serves a trace."""

    shape: ModelShape = QWEN3_8B
    kind: str = CORE  # with the real core, or jumping over uneventful steps
    num_replicas: int = 1
    router: str = "round-robin"
    policy: Policy = field(default_factory=Policy)
    # The service's defaults, and a GPU of its own for each replica.
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 40_960
    block_size: int = 16
    num_blocks: int = 0  # 0: as many as fit on the GPU

    def limits(self) -> WorkerLimits:
        """What a worker can take."""
        fitting = StepCost(self.shape).num_blocks(block_size=self.block_size)
        return WorkerLimits(
            num_blocks=self.num_blocks or fitting,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            vocab_size=VOCAB_SIZE,
        )


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    recorder: Recorder
    summary: Summary


def run(
    setup: Setup,
    trace: list[Conversation],
    *,
    measures_from_s: float = 0.0,
    measures_until_s: float = math.inf,
    keeps_gaps: bool = False,
) -> Outcome:
    """Plays a trace up to the end of what is measured; without one, until everything ended."""
    clock, recorder = Clock(), Recorder(keeps_gaps=keeps_gaps)
    recorder.window = Window(measures_from_s, measures_until_s)
    fleet = Fleet(clock, recorder, ROUTERS[setup.router](setup.num_replicas))
    cost, limits = StepCost(setup.shape), setup.limits()

    def make(on_end: Callable[[int], None]) -> Replica:
        made = CoreReplica if setup.kind == CORE else FastReplica
        return made(clock, cost, recorder, policy=setup.policy, limits=limits, on_end=on_end)

    fleet.add(make, count=setup.num_replicas)
    fleet.play(trace)
    clock.run(until=measures_until_s)
    return Outcome(recorder, summarize(recorder, seconds=clock.now - measures_from_s))
