"""A replica that jumps over steps in which nothing happens. Knows the core's rules, not its code.

Steps with prompts are planned one by one, with the core's own `Pace`. Between them all rows are
decode rows, and the steps up to the next end are computed at once, as arrays. An arrival cuts such
a stretch at the step that the core would plan next. One tenant, one priority class.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from bench.simulator.clock import Clock
from bench.simulator.cost import ChunkWork, StepCost
from bench.simulator.fast_admission import Chunk, FastAdmission
from bench.simulator.fast_cache import FastCache
from bench.simulator.fast_sequence import FastSequence
from bench.simulator.fast_stretch import Stretch, lead_s
from bench.simulator.jobs import Job
from bench.simulator.overheads import Overheads
from bench.simulator.recorder import Recorder
from scheduler_svc.core.limits import Policy, WorkerLimits
from scheduler_svc.core.pace import Pace

_MAX_STRETCH = 256


class FastReplica:
    """Serves jobs; `on_end` is told each job's number when it ends."""

    def __init__(
        self,
        clock: Clock,
        cost: StepCost,
        recorder: Recorder,
        *,
        policy: Policy,
        limits: WorkerLimits,
        on_end: Callable[[int], None],
        overheads: Overheads | None = None,
    ) -> None:
        self._clock = clock
        self._cost = cost
        self._recorder = recorder
        self._policy = policy
        self._limits = limits
        self._on_end = on_end
        self._overheads = overheads or Overheads()
        self._pace = Pace(
            target_token_time_s=policy.target_token_time_s,
            max_step_stretch=policy.max_step_stretch,
        )
        self._cache = FastCache(num_blocks=limits.num_usable_blocks, block_size=limits.block_size)
        self._admission = FastAdmission(
            self._cache, limits, max_times_passed=policy.max_times_passed
        )
        self._decoding: list[FastSequence] = []
        self._unobserved: deque[tuple[int, int, float]] = deque()
        self._stretch: Stretch | None = None
        self._free_at = 0.0  # when the GPU has done all planned steps
        self._plan_version = 0
        self._is_idle = True

    def submit(self, job: Job) -> bool:
        """Takes a job; returns whether it is accepted."""
        if len(self._admission.waiting) >= self._policy.max_queue_requests:
            return False
        self._admission.waiting.append(FastSequence(job))
        if self._is_idle:
            self._is_idle = False
            self._plan()
        elif self._stretch is not None:
            self._cut(self._stretch)
        return True

    # --- planning ---

    def _plan_at(self, moment: float) -> None:
        self._plan_version += 1
        self._clock.at(moment, partial(self._plan_if_current, self._plan_version))

    def _plan_if_current(self, version: int) -> None:
        if version == self._plan_version:
            self._plan()

    def _plan(self) -> None:
        """Plans the next step, or the steps up to the next end."""
        self._settle()
        self._make_room()
        chunks = self._chunks()
        if not chunks and not self._decoding:
            self._is_idle = True
            return
        begins = max(self._free_at, self._clock.now + self._overheads.plan_s)
        num_steps = 1 if chunks else self._num_steps()
        first = sum(each.num_known for each in self._decoding)
        if num_steps == 1:
            self._plan_one(chunks, begins, first)
            return
        seconds = self._cost.decode_steps_s(
            num_rows=len(self._decoding),
            num_context_tokens=first + len(self._decoding) * np.arange(num_steps),
        )
        ends = begins + np.cumsum(seconds)
        self._stretch = Stretch(
            rows=list(self._decoding),
            ends=ends,
            seconds=seconds,
            known_at=self._known_at_next(),
            overheads=self._overheads,
        )
        self._plan_at(float(self._stretch.next_plans()[-1]))

    def _plan_one(self, chunks: list[Chunk], begins: float, num_context_tokens: int) -> None:
        rows = self._decoding
        seconds = self._cost.step_s(
            num_decode_rows=len(rows),
            num_context_tokens=num_context_tokens,
            chunks=[ChunkWork(chunk.num_tokens, chunk.start) for chunk in chunks],
        )
        self._observe(len(rows), sum(chunk.num_tokens for chunk in chunks), [seconds])
        known_at = self._known_at_next()
        self._free_at = begins + seconds
        tells_at = self._free_at + self._overheads.result_s
        self._recorder.step(seconds, tells_at)
        making = [each for each in rows if each.num_rows_left]
        done = [chunk.sequence for chunk in chunks if not chunk.sequence.num_to_compute]
        self._advance(making + done, np.array([tells_at]))
        self._decoding = [each for each in self._decoding if self._goes_on(each)]
        for sequence in done:
            self._cache.publish(sequence.holding, sequence.job.prompt)
            if self._goes_on(sequence):
                self._decoding.append(sequence)
        self._plan_at(max(known_at, self._free_at - lead_s(seconds, self._overheads)))

    def _chunks(self) -> list[Chunk]:
        num_rows = len(self._decoding)
        most = self._limits.max_num_batched_tokens - num_rows
        admission = self._admission
        num_running = num_rows + len(admission.prefilling)
        num_free = self._limits.max_num_seqs - num_running
        budget = self._pace.prefill_budget(
            num_decode_rows=num_rows,
            num_prompts=len(admission.prefilling) + min(len(admission.waiting), num_free),
            most=most,
        )
        if budget.num_tokens <= 0 or not (admission.waiting or admission.prefilling):
            return []
        chunks, started = admission.fill(budget, num_running=num_running)
        for sequence in started:
            if not sequence.num_made:
                self._recorder.start(
                    sequence.job.number,
                    num_cached=_num_cached(chunks, sequence),
                    now=self._clock.now,
                )
        return chunks

    # --- stretches ---

    def _num_steps(self) -> int:
        """Steps until something ends or blocks run out."""
        num_steps = min(_MAX_STRETCH, *(each.num_rows_left for each in self._decoding))
        while num_steps > 1 and self._num_new_blocks(num_steps) > self._cache.num_available:
            num_steps //= 2
        return max(num_steps, 1)

    def _num_new_blocks(self, num_steps: int) -> int:
        size = self._limits.block_size
        known = np.array([each.num_known for each in self._decoding])
        return int((-(-(known + num_steps) // size) + (-known // size)).sum())

    def _cut(self, stretch: Stretch) -> None:
        """Something happened: ends a stretch before the first step that is not planned yet."""
        next_plan_at = stretch.cut(self._clock.now)
        if next_plan_at is not None:
            self._plan_at(next_plan_at)

    def _settle(self) -> None:
        """Takes a stretch's steps in."""
        stretch, self._stretch = self._stretch, None
        if stretch is None:
            return
        count = len(stretch.ends)
        self._observe(len(stretch.rows), 0, stretch.seconds[-9:].tolist())
        tells = stretch.ends + self._overheads.result_s
        self._recorder.step(float(stretch.seconds.sum()), float(tells[-1]), times=count)
        self._free_at = float(stretch.ends[-1])
        self._advance(stretch.rows, tells)
        self._decoding = [each for each in self._decoding if self._goes_on(each)]

    # --- rows ---

    def _advance(self, sequences: list[FastSequence], moments: npt.NDArray[np.float64]) -> None:
        """Each of these makes a token at each moment."""
        if not sequences:
            return
        size, count = self._limits.block_size, len(moments)
        numbers = np.array([each.job.number for each in sequences], np.int32)
        if count > 1:
            self._recorder.steady(numbers, moments)
        else:
            self._recorder.tokens(numbers, float(moments[0]))
        for each in sequences:
            held = -(-each.num_known // size)
            each.num_made += count
            self._cache.grow(each.holding, -(-each.num_known // size) - held)
            if not each.num_rows_left:
                self._clock.at(float(moments[-1]), partial(self._end, each))

    def _goes_on(self, sequence: FastSequence) -> bool:
        """Whether the next step has a row of it."""
        if sequence.num_rows_left:
            return True
        was_foreseen = sequence.job.turn.is_length_known or sequence.has_extra_row
        sequence.has_extra_row = True
        return not was_foreseen

    def _end(self, sequence: FastSequence) -> None:
        job = sequence.job
        self._cache.publish(sequence.holding, (*job.prompt, job.turn.answer))
        self._cache.release(sequence.holding)
        self._recorder.end(job.number, self._clock.now)
        if self._admission.waiting and self._stretch is not None:
            self._cut(self._stretch)
        self._on_end(job.number)

    def _make_room(self) -> None:
        """Preempts the youngest until every row can have its next block."""
        while len(self._decoding) > 1 and self._num_new_blocks(1) > self._cache.num_available:
            youngest = max(self._decoding, key=lambda each: each.job.number)
            self._decoding.remove(youngest)
            if youngest.num_rows_left:
                self._recorder.num_preemptions += 1
                self._cache.publish(youngest.holding, youngest.job.prompt)
                self._cache.release(youngest.holding)
                self._admission.put_back(youngest)

    # --- time ---

    def _known_at_next(self) -> float:
        """When the result of the last planned step is known."""
        return max(self._free_at + self._overheads.result_s, self._clock.now)

    def _observe(self, num_rows: int, num_prompt_tokens: int, seconds: list[float]) -> None:
        """Tells the pace of steps; that of the last one is known one plan later."""
        self._unobserved += [(num_rows, num_prompt_tokens, each) for each in seconds]
        while len(self._unobserved) > 1:
            num_decode_rows, num_prefill_tokens, took_s = self._unobserved.popleft()
            self._pace.observe(
                num_decode_rows=num_decode_rows,
                num_prefill_tokens=num_prefill_tokens,
                forward_us=round(took_s * 1e6),
            )


def _num_cached(chunks: list[Chunk], sequence: FastSequence) -> int:
    """Where the first chunk of a sequence that starts begins: behind what was cached."""
    return next(chunk.start for chunk in chunks if chunk.sequence is sequence)
