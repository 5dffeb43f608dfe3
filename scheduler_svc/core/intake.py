"""Takes requests in, or says why not. Knows nothing of steps."""

from scheduler_svc.core import checks
from scheduler_svc.core.census import Ahead
from scheduler_svc.core.estimate import Estimate, Question
from scheduler_svc.core.expectation import Expectation
from scheduler_svc.core.lifecycle import Lifecycle
from scheduler_svc.core.limits import Policy, WorkerLimits
from scheduler_svc.core.news import Accepted, Attached
from scheduler_svc.core.ownership import Ownership
from scheduler_svc.core.refusals import (
    BodyDiffers,
    DeadlineTooClose,
    Draining,
    NoWorkers,
    QueueFull,
    TenantLimit,
)
from scheduler_svc.core.registry import Registry
from scheduler_svc.core.request import EndReason, NewRequest, Request, ResumedOutput
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.suspicion import DEATHS_MESSAGE, MAX_DEATHS

# What a client is told to wait when nothing is measured yet, and the bounds when it is.
_FIRST_RETRY_S = 1.0
_LEAST_RETRY_S = 0.1
_MOST_RETRY_S = 60.0


class Intake:
    """The way into the core."""

    def __init__(
        self,
        policy: Policy,
        *,
        registry: Registry,
        lifecycle: Lifecycle,
        ownership: Ownership,
        expectation: Expectation,
    ) -> None:
        self._policy = policy
        self._registry = registry
        self._lifecycle = lifecycle
        self._ownership = ownership
        self._expectation = expectation
        self._num_arrivals = 0
        self.limits: WorkerLimits | None = None
        self.is_draining = False
        self.lacks_workers = False

    def submit(self, new: NewRequest, now: float) -> Accepted | Attached:
        """See `Core.submit`."""
        limits = self._limits_for(new)
        known = self._registry.find(new.tenant, new.request_id)
        if known is not None:
            return self._submit_known(known, new, limits, now)
        if not new.was_accepted:
            self._check_open()
        checks.check(new, limits, self._policy)
        max_tokens = checks.effective_max_tokens(new, limits)
        if not new.is_detached:
            self._registry.check_number(new.owner, new.number)
        if not new.was_accepted:
            self._check_room(new, now)
        self._accept(new, max_tokens, now)
        return Accepted(max_tokens=max_tokens)

    def estimate(self, question: Question) -> Estimate:
        """See `Core.estimate`."""
        num_cached = self._num_cached(question)
        ahead = self._ahead(question)
        first_token_s: float | None = None
        if self._expectation.is_founded:
            num_tokens = len(question.prompt) - num_cached
            first_token_s = self._expectation.first_token_s(ahead, num_tokens)
        return Estimate(
            num_cached_tokens=num_cached,
            num_requests_ahead=ahead.num_requests,
            num_tokens_ahead=ahead.num_tokens,
            first_token_s=first_token_s,
        )

    # --- refusals ---

    def _limits_for(self, new: NewRequest) -> WorkerLimits:
        if self.limits is None:
            raise NoWorkers
        return self.limits

    def _check_open(self) -> None:
        if self.is_draining:
            raise Draining
        if self.lacks_workers:
            raise NoWorkers

    def _check_room(self, new: NewRequest, now: float) -> None:
        policy, lifecycle = self._policy, self._lifecycle
        census = lifecycle.room.census
        # A tenant below its share of the queue is let in up to twice the limits: who fills the
        # queue shall not keep others out of it.
        is_full_for = census.fills_share(
            new.tenant, weight=new.tenant_weight, num_tokens=len(new.prompt), policy=policy
        )
        scale = 1 if is_full_for else 2
        num_requests, most_requests = census.num_requests, scale * policy.max_queue_requests
        if num_requests >= most_requests:
            raise self._queue_full("requests", waiting=num_requests, limit=most_requests)
        # An empty queue takes any prompt that fits the model.
        num_tokens, most_tokens = census.num_tokens, scale * policy.max_queue_tokens
        if num_tokens and num_tokens + len(new.prompt) > most_tokens:
            raise self._queue_full("prompt tokens", waiting=num_tokens, limit=most_tokens)
        self._check_tenant_limit(new)
        self._check_deadline(new, now)

    def _check_tenant_limit(self, new: NewRequest) -> None:
        # A resumed request was accepted by another core before: refused only at twice its tenant's
        # limit, lest `resume` be a way around it.
        most = new.tenant_max_requests * (2 if new.resume else 1)
        if most and self._lifecycle.shares.num_uses(new.tenant) >= most:
            raise TenantLimit(tenant=new.tenant, limit=most, retry_after_s=self._retry_after_s())

    def _queue_full(self, what: str, *, waiting: int, limit: int) -> QueueFull:
        return QueueFull(
            what=what, waiting=waiting, limit=limit, retry_after_s=self._retry_after_s()
        )

    def _check_deadline(self, new: NewRequest, now: float) -> None:
        if new.deadline is None:
            return
        question = Question(
            tenant=new.tenant,
            tenant_weight=new.tenant_weight,
            prompt=new.prompt,
            priority=new.priority,
            reads_cache=new.reads_cache,
        )
        needed_s = self._needed_s(question, num_cached=0)
        if now + needed_s >= new.deadline:
            # Worth a look at the cache before saying no.
            needed_s = self._needed_s(question, num_cached=self._num_cached(question))
        if now + needed_s >= new.deadline:
            raise DeadlineTooClose(needed_s=needed_s, left_s=new.deadline - now)

    def _needed_s(self, question: Question, *, num_cached: int) -> float:
        # What was measured counts only while others measure it anew.
        if not self._registry.num_live:
            return 0.0
        ahead = self._ahead(question)
        return self._expectation.first_token_s(ahead, len(question.prompt) - num_cached)

    def _ahead(self, question: Question) -> Ahead:
        census = self._lifecycle.room.census
        return census.ahead_of(question.tenant, question.priority, weight=question.tenant_weight)

    def _num_cached(self, question: Question) -> int:
        epoch = self._lifecycle.epoch
        if epoch is None or not (question.reads_cache and self._policy.use_prefix_cache):
            return 0
        cache, size = epoch.pool.cache, epoch.limits.block_size
        prompt = question.prompt.astype("<i4").tobytes()
        # The last token is computed in any case.
        most = (len(question.prompt) - 1) // size
        match = cache.match(cache.root(question.tenant), prompt, max_blocks=most)
        return len(match.blocks) * size

    def _retry_after_s(self) -> float:
        measured = self._expectation.queue_s()
        return min(max(measured, _LEAST_RETRY_S), _MOST_RETRY_S) if measured else _FIRST_RETRY_S

    # --- new ---

    def _accept(self, new: NewRequest, max_tokens: int, now: float) -> None:
        self._num_arrivals += 1
        request = checks.make_request(
            new,
            order=self._num_arrivals,
            tenant_index=self._lifecycle.shares.enter(new.tenant, weight=new.tenant_weight),
            max_tokens=max_tokens,
            policy=self._policy,
            now=now,
        )
        self._registry.add(request)
        self._lifecycle.room.enter(request, now)
        for sequence, resumed in zip(request.sequences, new.resume, strict=False):
            self._take_resumed(sequence, resumed, now)
        if request.num_live and new.num_core_deaths >= MAX_DEATHS:
            self._lifecycle.end_request(request, EndReason.ERROR, now, message=DEATHS_MESSAGE)
        if new.is_detached:
            self._ownership.lose_reader(request, request.keep_for_s, now)

    def _take_resumed(self, sequence: Sequence, resumed: ResumedOutput, now: float) -> None:
        """Ends a resumed output at once if its tokens say so."""
        if resumed.reason is not None:
            self._ownership.settle_resumed(sequence, resumed, now)
        else:
            self._lifecycle.end_if_complete(sequence, now)

    # --- known ---

    def _submit_known(
        self, request: Request, new: NewRequest, limits: WorkerLimits, now: float
    ) -> Attached:
        if request.new.body_digest != new.body_digest:
            raise BodyDiffers(request_id=new.request_id)
        if new.is_detached:
            return self._ownership.describe(request, None)
        checks.check_resume(new, limits)
        if not request.is_settled:
            self._registry.check_number(new.owner, new.number)
        self._catch_up(request, new, now)
        return self._ownership.take_over(
            request, owner=new.owner, number=new.number, deadline=new.deadline, now=now
        )

    def _catch_up(self, request: Request, new: NewRequest, now: float) -> None:
        """Lets outputs go on from a resume that holds more tokens than they have."""
        for sequence, resumed in zip(request.sequences, new.resume, strict=False):
            if sequence.end is not None:
                continue
            num_known = self._lifecycle.num_known(sequence)
            if resumed.reason is None and num_known >= len(request.new.prompt) + len(
                resumed.tokens
            ):
                continue
            self._lifecycle.withdraw(sequence)
            sequence.tokens = checks.known_tokens(request.new.prompt, resumed.tokens)
            sequence.records = checks.known_records(request.new, resumed)
            self._take_resumed(sequence, resumed, now)
            if sequence.end is None:
                self._lifecycle.room.wait(sequence, now)
