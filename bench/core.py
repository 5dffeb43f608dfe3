"""What the core costs: planning, applying and encoding a decode step, looking up a long prompt.

Pure Python on one core, no model and no sockets: a stand-in answers each plan with tokens. Rows
stand at different places in their blocks, as they do in service; the cache is full, so that every
new block evicts an old one. The garbage collector runs as it does in service.

    python bench/core.py                 # table
    python bench/core.py --json FILE     # and the numbers
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from octavo.internal.v1 import step_pb2
from scheduler_svc.core.block_pool import BlockPool
from scheduler_svc.core.core import Core
from scheduler_svc.core.limits import Policy, WorkerLimits
from scheduler_svc.core.plan import StepPlan, StepResult
from scheduler_svc.core.prefix_cache import PrefixCache
from scheduler_svc.core.request import NewRequest, SamplingParams
from scheduler_svc.engine.step_codec import encode_plan

BLOCK_SIZE = 16
VOCAB_SIZE = 151_936
NUM_STEPS = 1_600
NONE = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Case:
    """A steady state to measure."""

    num_rows: int
    num_waiting: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Microseconds of a step."""

    num_rows: int
    num_waiting: int
    context_tokens: int
    plan_p50_us: float
    apply_p50_us: float
    step_p50_us: float
    step_p99_us: float


class Service:
    """A core with as many streams as it has slots."""

    def __init__(self, case: Case, *, num_blocks: int = 0) -> None:
        self.random = np.random.default_rng(0)
        self.core = Core(
            Policy(max_queue_requests=10**9, max_queue_tokens=10**12), cache_root=b"bench"
        )
        # Room to decode to the end of the measurement; the rest of the cache is kept full.
        length = case.context_tokens + 2 * NUM_STEPS
        self.limits = WorkerLimits(
            num_blocks=max(1 + case.num_rows * (length // BLOCK_SIZE + 2), num_blocks),
            block_size=BLOCK_SIZE,
            max_num_seqs=case.num_rows,
            max_num_batched_tokens=8_192,
            max_model_len=length + BLOCK_SIZE,
            vocab_size=VOCAB_SIZE,
        )
        self.core.start_epoch(self.limits, 0.0)
        self.results: deque[StepResult] = deque()
        self.num_requests = 0
        self._fill_cache(case)
        for row in range(case.num_rows):
            self.submit(case.context_tokens + row % BLOCK_SIZE, max_tokens=None)
        while self.turn() < case.num_rows:
            pass
        for _ in range(case.num_waiting):
            self.submit(100, max_tokens=100)

    def submit(self, num_tokens: int, *, max_tokens: int | None) -> None:
        self.num_requests += 1
        self.core.submit(
            NewRequest(
                tenant=f"tenant-{self.num_requests % 10}",
                request_id=str(self.num_requests),
                owner=1 + self.num_requests % 2,
                number=self.num_requests,
                blob=b"",
                body_digest=b"",
                prompt=self.random.integers(1_000, VOCAB_SIZE, num_tokens, dtype=np.int32),
                max_tokens=max_tokens,
                eos_token_ids=(1, 2),
                sampling=SamplingParams(temperature=1.0, seed=self.num_requests),
                submitted_at=0.0,
            ),
            0.0,
        )

    def answer(self, plan: StepPlan) -> None:
        num_tokens = plan.num_decode_rows + int(plan.chunk_samples.sum())
        self.results.append(
            StepResult(
                step=plan.step,
                tokens=self.random.integers(1_000, VOCAB_SIZE, num_tokens, dtype=np.int32),
                token_counts=None,
                failed_rows=NONE,
                forward_us=5_000,
            )
        )

    def turn(self) -> int:
        """Plans as far ahead as allowed, applies one result; rows of the last plan that decode."""
        num_decode_rows = 0
        while (plan := self.core.plan(0.0)) is not None:
            self.answer(plan)
            num_decode_rows = plan.num_decode_rows
        self.core.apply(self.results.popleft(), 0.0)
        return num_decode_rows

    def _fill_cache(self, case: Case) -> None:
        """Publishes prompts that nobody holds any more, until no block is free."""
        while self.core.counts().num_blocks_free > 2 * case.num_rows:
            self.submit(min(4_000, self.limits.max_model_len - 2), max_tokens=1)
            while self.core.has_work:
                self.turn()


def measure(case: Case) -> Measured:
    """Times planning and applying of decode steps, one step ahead."""
    plan_us, apply_us = step_times_us(Service(case), case.num_rows)
    step_us = [sum(both) for both in zip(plan_us, apply_us, strict=True)]
    return Measured(
        **asdict(case),
        plan_p50_us=statistics.median(plan_us),
        apply_p50_us=statistics.median(apply_us),
        step_p50_us=statistics.median(step_us),
        step_p99_us=statistics.quantiles(step_us, n=100)[98],
    )


def step_times_us(
    service: Service, num_rows: int, num_steps: int = NUM_STEPS
) -> tuple[list[float], list[float]]:
    """Microseconds of planning and of applying, of each of so many steady steps."""
    plan_us, apply_us = [], []
    for _ in range(num_steps):
        started = time.perf_counter()
        plan = service.core.plan(0.0)
        planned = time.perf_counter()
        if plan is None or plan.num_decode_rows != num_rows:
            raise RuntimeError("the batch is not steady: the case is set up wrongly")
        service.answer(plan)
        result = service.results.popleft()
        answered = time.perf_counter()
        service.core.apply(result, 0.0)
        applied = time.perf_counter()
        plan_us.append((planned - started) * 1e6)
        apply_us.append((applied - answered) * 1e6)
    return plan_us, apply_us


@dataclass(frozen=True, slots=True)
class Million:
    """A core whose cache holds a million blocks, or nearly so."""

    made_s: float  # to set up the pool
    num_cached: int
    step_p50_us: float
    step_p99_us: float
    step_max_us: float
    flush_us: float
    step_after_p50_us: float
    step_after_max_us: float


def measure_million() -> Million:
    """Steps over a full cache of a million blocks; a flush of it, and steps over what it leaves."""
    num_blocks, case = 1_000_000, Case(256, 10, 200)
    started = time.perf_counter()
    cache = PrefixCache(num_blocks=num_blocks, block_size=BLOCK_SIZE, root=b"bench")
    BlockPool(num_blocks=num_blocks, cache=cache)
    made_s = time.perf_counter() - started
    service = Service(case, num_blocks=num_blocks)
    before = [sum(both) for both in zip(*step_times_us(service, 256, 800), strict=True)]
    num_cached = service.core.counts().num_blocks_cached
    started = time.perf_counter()
    service.core.flush_prefix_cache()
    flush_us = 1e6 * (time.perf_counter() - started)
    after = [sum(both) for both in zip(*step_times_us(service, 256, 800), strict=True)]
    return Million(
        made_s=made_s,
        num_cached=num_cached,
        step_p50_us=statistics.median(before),
        step_p99_us=statistics.quantiles(before, n=100)[98],
        step_max_us=max(before),
        flush_us=flush_us,
        step_after_p50_us=statistics.median(after),
        step_after_max_us=max(after),
    )


def measure_lookup(num_tokens: int) -> float:
    """Milliseconds to match a prompt that is cached as a whole."""
    num_blocks = num_tokens // BLOCK_SIZE
    cache = PrefixCache(num_blocks=num_blocks + 1, block_size=BLOCK_SIZE, root=b"bench")
    tokens = np.random.default_rng(0).integers(0, VOCAB_SIZE, num_tokens, dtype=np.int32).tobytes()
    root = link = cache.root("tenant")
    size = 4 * BLOCK_SIZE
    for block in range(num_blocks):
        link, _ = cache.publish(block + 1, link, tokens[block * size : (block + 1) * size])
    return 1e3 * median_time(lambda: cache.match(root, tokens, max_blocks=num_blocks))


def measure_codec(num_rows: int) -> tuple[float, int]:
    """Microseconds to encode a plan of decode rows and to read it again, and its mean bytes."""
    service = Service(Case(num_rows, 10, 200))
    epoch = step_pb2.Epoch(core_incarnation=1 << 60, counter=1)
    times_us, sizes = [], []
    for _ in range(NUM_STEPS):
        plan = service.core.plan(0.0)
        if plan is None:
            raise RuntimeError("the batch is not steady: the case is set up wrongly")
        started = time.perf_counter()
        payload = encode_plan(plan, epoch)
        read = step_pb2.CoreToRank.FromString(payload).plan
        slots = np.frombuffer(read.slots, "<i4")
        blocks = [
            np.frombuffer(column, "<i4")
            for column in (read.new_block_slots, read.new_block_indexes, read.new_block_ids)
        ]
        times_us.append((time.perf_counter() - started) * 1e6)
        if len(slots) != num_rows or len(blocks[0]) != len(plan.new_block_ids):
            raise RuntimeError("a plan changed on its way")
        sizes.append(len(payload))
        service.answer(plan)
        service.core.apply(service.results.popleft(), 0.0)
    return statistics.median(times_us), round(statistics.mean(sizes))


def median_time(work: Callable[[], object]) -> float:
    """Seconds, the median of many runs."""
    times = []
    for _ in range(200):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the numbers there")
    arguments = parser.parse_args()
    cases = [
        Case(num_rows, num_waiting, context_tokens)
        for num_rows in (256, 1_024)
        for num_waiting in (10, 1_000, 100_000)
        for context_tokens in ((200, 8_000) if num_rows == 256 else (200,))
    ]
    print("decode rows  waiting  context   plan p50  apply p50   step p50   step p99  [us]")
    steps = []
    for case in cases:
        step = measure(case)
        steps.append(step)
        print(
            f"{step.num_rows:>11}{step.num_waiting:>9}{step.context_tokens:>9}"
            f"{step.plan_p50_us:>11.0f}{step.apply_p50_us:>11.0f}"
            f"{step.step_p50_us:>11.0f}{step.step_p99_us:>11.0f}"
        )
    lookup_ms = measure_lookup(32_768)
    print(f"lookup of a 32,768-token prompt, all of it cached: {lookup_ms:.2f} ms")
    codec_us, num_bytes = measure_codec(256)
    print(f"encode and decode a plan of 256 rows: {codec_us:.1f} us, {num_bytes} bytes on average")
    million = measure_million()
    print(
        f"1,000,000 blocks, {million.num_cached:,} cached: {million.made_s:.2f} s to set up; a step"
        f" of 256 rows {million.step_p50_us:.0f} us (p99 {million.step_p99_us:.0f}, max"
        f" {million.step_max_us:.0f}); to flush {million.flush_us:.0f} us; steps after it"
        f" {million.step_after_p50_us:.0f} us (max {million.step_after_max_us:.0f})"
    )
    if arguments.json is not None:
        numbers = {
            "python": sys.version.split()[0],
            "block_size": BLOCK_SIZE,
            "steps": [asdict(step) for step in steps],
            "lookup_32k_ms": lookup_ms,
            "codec_256_us": codec_us,
            "codec_256_bytes": num_bytes,
            "million_blocks": asdict(million),
        }
        arguments.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
