"""A replica: the real core and the engine's real pacer, a simulated worker. Knows no router.

As in the engine, plan k+1 goes out while step k runs, shortly before its predicted end, and the
core learns the tokens of k only afterwards.
"""

from collections import deque
from collections.abc import Callable

from bench.simulator.clock import Clock
from bench.simulator.cost import StepCost
from bench.simulator.jobs import Job
from bench.simulator.overheads import Overheads
from bench.simulator.prompts import EOS
from bench.simulator.recorder import Recorder
from bench.simulator.worker import Computed, SimulatedWorker, answer_seed
from scheduler_svc.core.core import Core
from scheduler_svc.core.limits import Policy, WorkerLimits
from scheduler_svc.core.news import OutputEnd, StepNews
from scheduler_svc.core.refusals import Refused
from scheduler_svc.core.request import NewRequest, SamplingParams
from scheduler_svc.engine.pacing import Pacer

_OWNER = 1


class CoreReplica:
    """Serves jobs with the real core; `on_end` is told each job's number when it ends."""

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
        self.core = Core(policy, cache_root=bytes(16))
        self._clock = clock
        self._recorder = recorder
        self._overheads = overheads or Overheads()
        self._on_end = on_end
        self._worker = SimulatedWorker(cost, num_slots=limits.max_num_seqs)
        self._pacer = Pacer(deadline_floor_s=60.0)
        self._out: deque[Computed] = deque()
        self._device_free_at = 0.0
        self._wakes_at = -1.0
        self.core.start_epoch(limits, clock.now)

    def submit(self, job: Job) -> bool:
        """Takes a job; returns whether it is accepted."""
        try:
            self.core.submit(_new_request(job, self._clock.now), self._clock.now)
        except Refused:
            return False
        self._plan()
        return True

    def _plan(self) -> None:
        """Sends plans that are due."""
        now = self._clock.now
        while self.core.can_plan:
            due = self._pacer.plan_due_at() - self._overheads.plan_slack_s
            if due > now:
                self._wake_at(due)
                return
            plan = self.core.plan(now)
            if plan is None:
                return
            self._pacer.issue(
                num_decode_rows=plan.num_decode_rows,
                num_prefill_tokens=plan.num_prefill_tokens,
                now=now,
            )
            computed = self._worker.compute(plan)
            begins = max(self._device_free_at, now + self._overheads.plan_s)
            self._device_free_at = begins + computed.seconds
            self._out.append(computed)
            self._clock.at(self._device_free_at + self._overheads.result_s, self._complete)

    def _wake_at(self, moment: float) -> None:
        if self._wakes_at != moment:
            self._wakes_at = moment
            self._clock.at(moment, self._plan)

    def _complete(self) -> None:
        """The oldest step's result arrives."""
        now, computed = self._clock.now, self._out.popleft()
        news = self.core.apply(computed.result, now)
        self._pacer.complete(now)
        self._recorder.step(computed.seconds, now)
        self._tell(news, now)
        self._plan()

    def _tell(self, news: StepNews, now: float) -> None:
        for start in news.starts:
            self._recorder.start(start.number, num_cached=start.num_cached_tokens, now=now)
        if len(news.rows.numbers):
            self._recorder.tokens(news.rows.numbers, now)
        for end in news.ends:
            self._end(end, now)

    def _end(self, end: OutputEnd, now: float) -> None:
        self.core.finish_output(
            owner=end.owner,
            number=end.number,
            output_index=end.output_index,
            num_tokens=end.num_tokens,
            reason=end.reason,
            stop_string="",
            now=now,
        )
        self._recorder.num_preemptions += end.num_preemptions
        self._recorder.end(end.number, now)
        self._on_end(end.number)


def _new_request(job: Job, now: float) -> NewRequest:
    answer, is_length_known = job.turn.answer, job.turn.is_length_known
    return NewRequest(
        tenant=job.conversation.tenant,
        request_id=str(job.number),
        owner=_OWNER,
        number=job.number,
        blob=b"",
        body_digest=b"",
        prompt=job.tokens(),
        max_tokens=answer.num_tokens if is_length_known else None,
        eos_token_ids=() if is_length_known else (EOS,),
        sampling=SamplingParams(seed=answer_seed(answer)),
        priority=job.conversation.priority,
        submitted_at=now,
    )
