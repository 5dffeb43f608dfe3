"""What the readings cost: processor time of a step in the core, and of a chunk in a frontend.

python bench/metrics_cost.py [--json FILE]

Blocks with the readings and blocks with ones that do nothing alternate, and the medians of both are
compared: what the machine does meanwhile hits both alike. Starts no process.
"""

import argparse
import asyncio
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from scheduler_svc.core.core import Core
from scheduler_svc.core.limits import Policy, WorkerLimits
from scheduler_svc.core.news import RequestStart
from scheduler_svc.core.plan import StepPlan
from scheduler_svc.core.request import NewRequest
from scheduler_svc.engine.core_readings import CoreReadings
from scheduler_svc.engine.pacing import StepTiming
from scheduler_svc.frontend.pace import Pace
from scheduler_svc.frontend.record import RequestRecord
from scheduler_svc.frontend.traffic import Traffic

NUM_BLOCKS, BLOCK_TURNS = 201, 1_000
NUM_ROWS = 64
TIMING = StepTiming(kind="decode", seconds=0.012)


class NoReadings(CoreReadings):
    """Called as often, counts nothing."""

    def note_plan(self, plan: StepPlan) -> None:
        pass

    def note_step(self, timing: StepTiming) -> None:
        pass

    def note_starts(self, starts: object) -> None:
        pass


class NoPace(Pace):
    """Called as often, counts nothing."""

    def note_made(self, *, now: float) -> None:
        pass

    def note_taken(self, chunk: api.StreamChunk, *, now: float) -> None:
        pass


def core_and_plan() -> tuple[Core, StepPlan]:
    """A core with work, and the plan of a full batch."""
    core = Core(Policy(), cache_root=b"bench")
    limits = WorkerLimits(
        num_blocks=1_000,
        block_size=16,
        max_num_seqs=NUM_ROWS,
        max_num_batched_tokens=8_192,
        max_model_len=1_024,
        vocab_size=32_000,
    )
    core.start_epoch(limits, 0.0)
    for number in range(1, NUM_ROWS + 1):
        core.submit(
            NewRequest(
                tenant="bench",
                request_id=str(number),
                owner=1,
                number=number,
                blob=b"",
                body_digest=b"",
                prompt=np.arange(number, number + 50, dtype=np.int32),
                submitted_at=0.0,
            ),
            0.0,
        )
    plan = core.plan(0.0)
    assert plan is not None
    return core, plan


def step_of(readings: CoreReadings, plan: StepPlan) -> Callable[[], None]:
    """What one step calls; a request starts in it, as in one of many."""
    starts = (RequestStart(owner=1, number=1, num_cached_tokens=0, queued_us=900),)

    def step() -> None:
        readings.note_plan(plan)
        readings.note_step(TIMING)
        readings.note_starts(starts)

    return step


def chunk_of(pace: Pace) -> Callable[[], None]:
    """What one chunk with one token calls."""
    chunk = api.StreamChunk(outputs=[api.OutputDelta(text=" a", token_ids=[7])])

    def take() -> None:
        pace.note_made(now=1.0)
        pace.note_taken(chunk, now=1.0)

    return take


def fill(traffic: Traffic) -> None:
    """A series of every kind, as after a day of traffic."""
    for method in ("Generate", "GenerateUnary", "Attach", "Cancel"):
        traffic.call_started(method)
        for code in ("OK", "CANCELLED", "UNAVAILABLE", "INVALID_ARGUMENT"):
            traffic.call_ended(method, code)
    for observe in (traffic.first_token, traffic.prefilled, traffic.decoded, traffic.request_ended):
        observe(0.5)
    for cause in ("client_left", "deadline", "stopping", "slow_reader"):
        traffic.aborted(cause)
    for side in ("service", "client"):
        traffic.stalled(side)
    for reason in engine.EndReason.values():
        traffic.output_finished(engine.Finish(reason=reason))


def block_us(call: Callable[[], None]) -> float:
    """Processor time of one call, over a block of them."""
    began = time.thread_time_ns()
    for _ in range(BLOCK_TURNS):
        call()
    return (time.thread_time_ns() - began) / BLOCK_TURNS / 1_000


def difference_us(real: Callable[[], None], nothing: Callable[[], None]) -> float:
    """Median of blocks with, less median of blocks without."""
    costs: tuple[list[float], list[float]] = ([], [])
    for block in range(NUM_BLOCKS):
        for which in (0, 1) if block % 2 else (1, 0):
            costs[which].append(block_us((real, nothing)[which]))
    return statistics.median(costs[0]) - statistics.median(costs[1])


async def measure() -> dict[str, float]:
    """All costs, in microseconds."""
    core, plan = core_and_plan()
    readings, traffic = CoreReadings(), Traffic()
    record = RequestRecord(engine.Submit(request_id="bench"), now=0.0)
    step = difference_us(step_of(readings, plan), step_of(NoReadings(), plan))
    chunk = difference_us(
        chunk_of(Pace(traffic, record, arrived_at=0.0)),
        chunk_of(NoPace(traffic, record, arrived_at=0.0)),
    )

    def snapshot() -> None:
        waiting = core.count_waiting()
        readings.render(core.counts(), waiting=waiting, num_steps=1, num_epochs=1, moved_s=0.0)

    fill(traffic)

    def report() -> None:
        traffic.render()

    return {
        "core_step_us": step,
        "core_snapshot_us": statistics.median(block_us(snapshot) for _ in range(5)),
        "frontend_chunk_us": chunk,
        "frontend_snapshot_us": statistics.median(block_us(report) for _ in range(5)),
    }


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    gc.disable()
    result = asyncio.run(measure())
    step_us, snapshot_us = result["core_step_us"], result["core_snapshot_us"]
    print(f"core: {step_us:.2f} us a step, and {snapshot_us:.0f} us a second for the snapshot")
    chunk_us, snapshot_us = result["frontend_chunk_us"], result["frontend_snapshot_us"]
    print(f"frontend: {chunk_us:.2f} us a chunk, and {snapshot_us:.0f} us a second")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
