"""The one class the engine drives. Knows nothing of sockets, messages, clocks or processes.

Calls come from one thread. Every `now` is in seconds on one monotonic clock and never goes back.
"""

from collections.abc import Callable

from xxhash import xxh3_128_digest

from scheduler_svc.core.admission import Admission
from scheduler_svc.core.block_pool import BlockPool
from scheduler_svc.core.counts import Counts
from scheduler_svc.core.epoch import Epoch
from scheduler_svc.core.estimate import Estimate, Question
from scheduler_svc.core.expectation import Expectation
from scheduler_svc.core.intake import Intake
from scheduler_svc.core.lifecycle import Lifecycle
from scheduler_svc.core.limits import Policy, WorkerLimits
from scheduler_svc.core.listing import (
    Listing,
    Waiting,
    WaitReason,
    Wish,
    count_waiting,
    list_requests,
)
from scheduler_svc.core.news import (
    Accepted,
    Attached,
    CancelAnswer,
    NewsBox,
    OutputSoFar,
    StepNews,
    no_rows,
)
from scheduler_svc.core.ownership import Ownership
from scheduler_svc.core.pace import Pace
from scheduler_svc.core.plan import BadResult, MaskedRow, StepPlan, StepResult
from scheduler_svc.core.prefix_cache import PrefixCache
from scheduler_svc.core.records import WORD_BYTES
from scheduler_svc.core.refusals import UnknownRequest
from scheduler_svc.core.registry import Registry
from scheduler_svc.core.request import EndReason, NewRequest, Request
from scheduler_svc.core.results import Results
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.suspicion import DEATHS_MESSAGE
from scheduler_svc.core.tenants import TenantShares
from scheduler_svc.core.waiting import WaitingQueue
from scheduler_svc.core.waiting_room import WaitingRoom


class Core:
    """All requests of a replica and the step that comes next.

    The engine's cycle: intake (`submit`, `finish_output`, ...), `expire`, `plan` while `can_plan`,
    `apply` for each result. Ends and starts that any call causes are told once, by the next `apply`
    or `take_news`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        cache_root: bytes,
        digest: Callable[[bytes], bytes] = xxh3_128_digest,
    ) -> None:
        """`cache_root` is random; `digest` names cached blocks, tests give a poor one."""
        self._policy = policy
        self._cache_root = cache_root
        self._digest = digest
        self._news = NewsBox()
        self._pace = Pace(
            target_token_time_s=policy.target_token_time_s,
            max_step_stretch=policy.max_step_stretch,
        )
        shares = TenantShares()
        self._registry = Registry(
            max_keep_for_s=policy.max_keep_for_s, max_retained_tokens=policy.max_retained_tokens
        )
        self._lifecycle = Lifecycle(
            room=WaitingRoom(WaitingQueue(shares, ageing_s=policy.ageing_s)),
            shares=shares,
            registry=self._registry,
            news=self._news,
        )
        self._expectation = Expectation(lifecycle=self._lifecycle, pace=self._pace)
        self._ownership = Ownership(policy, lifecycle=self._lifecycle, registry=self._registry)
        self._intake = Intake(
            policy,
            registry=self._registry,
            lifecycle=self._lifecycle,
            ownership=self._ownership,
            expectation=self._expectation,
        )
        admission = Admission(policy, lifecycle=self._lifecycle, pace=self._pace)
        self._scheduler = Scheduler(lifecycle=self._lifecycle, admission=admission, pace=self._pace)
        self._results = Results(lifecycle=self._lifecycle, pace=self._pace)

    # --- epochs ---

    def start_epoch(self, limits: WorkerLimits, now: float) -> None:
        """Begins to plan for a rank group whose batch and KV contents are empty.

        Steps count from 1. Unfinished sequences wait again, from their known tokens. An epoch that
        still runs is left first.
        """
        self._lifecycle.abandon_epoch(now)
        self._intake.limits = limits
        cache = PrefixCache(
            num_blocks=limits.num_blocks,
            block_size=limits.block_size,
            root=self._cache_root,
            digest=self._digest,
        )
        pool = BlockPool(num_blocks=limits.num_blocks, cache=cache)
        self._lifecycle.epoch = Epoch(limits, pool=pool)
        for request in self._registry.living():
            self._lifecycle.fit(request, limits, now)

    def leave_epoch(self, now: float, *, was_fatal: bool) -> None:
        """Stops planning: the workers are gone or out of step. Steps in flight are forgotten.

        With `was_fatal` (a worker died or hung) those in steps in flight are suspects: after the
        second time without a new token one runs alone, after the third its request ends ERROR.
        """
        epoch = self._lifecycle.epoch
        if epoch is None:
            return
        doomed = self._lifecycle.room.suspicion.note_deaths(epoch) if was_fatal else []
        self._lifecycle.abandon_epoch(now)
        for request in doomed:
            self._lifecycle.end_request(request, EndReason.ERROR, now, message=DEATHS_MESSAGE)

    @property
    def has_epoch(self) -> bool:
        """Whether there are workers to plan for."""
        return self._lifecycle.epoch is not None

    @property
    def max_sequence_tokens(self) -> int:
        """Most tokens of one sequence under the last epoch's limits; 0 before the first."""
        limits = self._intake.limits
        return 0 if limits is None else limits.max_sequence_tokens

    # --- intake ---

    def submit(self, request: NewRequest, now: float) -> Accepted | Attached:
        """Takes a request, or attaches its owner to the known one with its name and body.

        Raises Refused, having kept nothing. Before the first epoch nothing can be checked, and new
        requests are refused with NoWorkers: the engine holds them back until then. When the known
        request lives and the resume holds more tokens than it, it goes on from the resume.
        """
        return self._intake.submit(request, now)

    def attach(
        self,
        *,
        tenant: str,
        request_id: str,
        owner: int,
        number: int,
        deadline: float | None,
        now: float,
    ) -> Attached:
        """Moves a known request to another owner, with a deadline of its own.

        Raises UnknownRequest, or InvalidField when the owner uses the number already.
        """
        return self._ownership.take_over(
            self._registry.named(tenant, request_id),
            owner=owner,
            number=number,
            deadline=deadline,
            now=now,
        )

    def detach(self, *, owner: int, number: int, cancel: bool, now: float) -> None:
        """The owner's reader left: the request lives on for its keep_for_s, or is forgotten.

        The number is free of it from here on. Ignores a number that the owner does not own.
        """
        request = self._registry.owned(owner, number)
        if request is not None:
            self._ownership.detach(request, now, is_cancelled=cancel)

    def cancel(self, *, tenant: str, request_id: str, now: float) -> CancelAnswer:
        """Ends a request; its owner is told by news. An unknown one is an answer, not an error."""
        request = self._registry.find(tenant, request_id)
        if request is None:
            return CancelAnswer(is_known=False, was_finished=False)
        was_finished = not request.num_live
        self._lifecycle.end_request(request, EndReason.CANCELLED, now)
        return CancelAnswer(is_known=True, was_finished=was_finished)

    def finish_output(
        self,
        *,
        owner: int,
        number: int,
        output_index: int,
        num_tokens: int,
        reason: EndReason,
        stop_string: str,
        now: float,
    ) -> None:
        """The owner's word on where an output ends: fixes what is retained.

        Ends the sequence if it still runs; no further end is told. Ignores a number that the owner
        does not own, and an output that was settled before.
        """
        request = self._registry.owned(owner, number)
        if request is None or not 0 <= output_index < len(request.sequences):
            return
        sequence = request.sequences[output_index]
        if not sequence.is_settled:
            self._ownership.settle(
                sequence, num_tokens=num_tokens, reason=reason, message=stop_string, now=now
            )

    def lose_owner(self, owner: int, now: float) -> None:
        """The owner's connection is gone for good: its requests are orphans, its numbers dead."""
        for request in self._registry.owned_by(owner):
            self._ownership.orphan(request, now)

    def owner_unseen(self, owner: int, now: float) -> None:
        """The owner has not been heard of: nobody reads its requests, though it still owns them."""
        for request in self._registry.owned_by(owner):
            self._ownership.doubt(request, now)

    def owner_seen(self, owner: int, now: float) -> None:
        """An unseen owner was heard of again."""
        for request in self._registry.owned_by(owner):
            if not request.has_reader:
                self._ownership.gain_reader(request, now)

    def refuse_new(self, *, draining: bool, no_workers: bool) -> None:
        """Says whether new requests are refused, and why; known ones go on."""
        self._intake.is_draining = draining
        self._intake.lacks_workers = no_workers

    def end_all(self, reason: EndReason, now: float) -> None:
        """Ends every output that lives, such as with DRAINED at a drain's limit."""
        for request in self._registry.living():
            self._lifecycle.end_request(request, reason, now)

    # --- steps ---

    @property
    def can_plan(self) -> bool:
        """Whether an epoch runs and fewer steps are out than may be."""
        epoch = self._lifecycle.epoch
        if epoch is None:
            return False
        return epoch.has_room_in_flight(self._policy.max_steps_in_flight)

    @property
    def has_work(self) -> bool:
        """Whether a sequence runs or waits."""
        return self._lifecycle.has_work

    @property
    def num_steps_issued(self) -> int:
        """Steps planned in this epoch."""
        epoch = self._lifecycle.epoch
        return 0 if epoch is None else epoch.num_issued

    @property
    def num_steps_done(self) -> int:
        """Steps applied in this epoch."""
        epoch = self._lifecycle.epoch
        return 0 if epoch is None else epoch.num_done

    def plan(self, now: float) -> StepPlan | None:
        """The next step; None when no row can run now: all wait for results, or there are none."""
        epoch = self._lifecycle.epoch
        if epoch is None or not self.can_plan:
            return None
        return self._scheduler.plan(epoch, now)

    def apply(self, result: StepResult, now: float) -> StepNews:
        """Takes the oldest step's tokens in, and tells all news.

        Raises BadResult, having changed nothing, if the result does not answer that step.
        """
        epoch = self._lifecycle.epoch
        if epoch is None:
            raise BadResult(f"result of step {result.step}, but no epoch runs")
        return self._news.take(self._results.apply(epoch, result, now))

    def fail_masked(self, row: MaskedRow, message: str, now: float) -> None:
        """Ends an output whose grammar cannot go on; does nothing if it left the row's slot."""
        epoch = self._lifecycle.epoch
        if epoch is None:
            return
        batch = epoch.batch
        sequence = batch.sequences[row.slot]
        if sequence is not None and batch.generation[row.slot] == row.generation:
            self._lifecycle.end(sequence, EndReason.ERROR, now, message=message)

    # --- time ---

    def next_expiry(self) -> float | None:
        """When `expire` has something to do next; may be early, never late."""
        return self._registry.next_due()

    def expire(self, now: float) -> None:
        """Ends what is past its deadline or limit, forgets what was kept long enough."""
        for request in self._registry.pop_due(now):
            self._ownership.expire(request, now)

    # --- readings ---

    def take_news(self) -> StepNews:
        """Ends and starts not told yet; its rows are empty."""
        return self._news.take(no_rows())

    def output_so_far(
        self, *, owner: int, number: int, output_index: int, first_token_index: int
    ) -> OutputSoFar:
        """What an owner that missed news has to catch up with.

        Raises UnknownRequest for a number that the owner does not own.
        """
        request = self._owned(owner, number)
        if not 0 <= output_index < len(request.sequences):
            raise UnknownRequest(request_id=f"{request.new.request_id}, output {output_index}")
        return self._ownership.output_from(request.sequences[output_index], first_token_index)

    def prompt_records_so_far(self, *, owner: int, number: int, first_position: int) -> bytes:
        """Records of the prompt from a position on, for an owner that missed news.

        Raises UnknownRequest for a number that the owner does not own.
        """
        request = self._owned(owner, number)
        wishes = request.new.records
        skipped = first_position - wishes.prompt_from
        return bytes(request.prompt_records[skipped * WORD_BYTES * wishes.prompt_words :])

    def counts(self) -> Counts:
        """Numbers for metrics; cheap."""
        lifecycle, epoch = self._lifecycle, self._lifecycle.epoch
        pool = None if epoch is None else epoch.pool
        return Counts(
            num_waiting=lifecycle.room.num_waiting,
            num_waiting_tokens=lifecycle.room.census.num_tokens,
            num_running=0 if epoch is None else epoch.batch.num_occupied,
            num_live=self._registry.num_live,
            num_requests=len(self._registry),
            num_retained_tokens=self._registry.num_retained_tokens,
            num_blocks=0 if pool is None else pool.num_blocks,
            num_blocks_in_use=0 if pool is None else pool.num_in_use,
            num_blocks_cached=0 if pool is None else pool.num_cached,
            num_blocks_fenced=0 if pool is None else pool.num_fenced,
            num_blocks_free=0 if pool is None else pool.num_free,
            total_prompt_tokens=lifecycle.total_prompt_tokens,
            total_cached_tokens=lifecycle.total_cached_tokens,
            total_generated_tokens=self._results.total_generated_tokens,
            total_preemptions=lifecycle.total_preemptions,
            total_replayed_tokens=lifecycle.total_replayed_tokens,
        )

    def count_waiting(self) -> dict[WaitReason, Waiting]:
        """Outputs that do not run, by what they wait for; looks at everything that lives."""
        return count_waiting(self._lifecycle, self._registry)

    def list_requests(self, wish: Wish, now: float) -> Listing:
        """What lives, and why it waits if it does."""
        return list_requests(wish, self._lifecycle, self._registry, now)

    def estimate(self, question: Question) -> Estimate:
        """What a request would meet now; changes nothing."""
        return self._intake.estimate(question)

    def flush_prefix_cache(self) -> int:
        """Forgets all cached prefixes; running sequences go on. Returns how many blocks it were."""
        epoch = self._lifecycle.epoch
        return 0 if epoch is None else epoch.flush_cache()

    # --- within ---

    def _owned(self, owner: int, number: int) -> Request:
        request = self._registry.owned(owner, number)
        if request is None:
            raise UnknownRequest(request_id=f"number {number}")
        return request
