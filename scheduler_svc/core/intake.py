"""Takes requests in, or says why not. Knows nothing of steps."""

from scheduler_svc.core import checks
from scheduler_svc.core.lifecycle import Lifecycle
from scheduler_svc.core.limits import Policy, WorkerLimits
from scheduler_svc.core.news import Accepted, Attached
from scheduler_svc.core.ownership import Ownership
from scheduler_svc.core.pace import Pace
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
        pace: Pace,
    ) -> None:
        self._policy = policy
        self._registry = registry
        self._lifecycle = lifecycle
        self._ownership = ownership
        self._pace = pace
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
        room = lifecycle.room
        # A tenant below its share of the queue is let in up to twice the limits: who fills the
        # queue shall not keep others out of it.
        is_full_for = room.fills_share(new.tenant, num_tokens=len(new.prompt), policy=policy)
        scale = 1 if is_full_for else 2
        num_requests, most_requests = room.num_new_requests, scale * policy.max_queue_requests
        if num_requests >= most_requests:
            raise self._queue_full("requests", waiting=num_requests, limit=most_requests)
        # An empty queue takes any prompt that fits the model.
        num_tokens, most_tokens = room.num_new_tokens, scale * policy.max_queue_tokens
        if num_tokens and num_tokens + len(new.prompt) > most_tokens:
            raise self._queue_full("prompt tokens", waiting=num_tokens, limit=most_tokens)
        most = policy.max_tenant_requests
        if most and lifecycle.shares.num_uses(new.tenant) >= most:
            raise TenantLimit(tenant=new.tenant, limit=most, retry_after_s=self._retry_after_s())
        self._check_deadline(new, now)

    def _queue_full(self, what: str, *, waiting: int, limit: int) -> QueueFull:
        return QueueFull(
            what=what, waiting=waiting, limit=limit, retry_after_s=self._retry_after_s()
        )

    def _check_deadline(self, new: NewRequest, now: float) -> None:
        if new.deadline is None:
            return
        needed_s = self._needed_s(len(new.prompt))
        if now + needed_s >= new.deadline:
            # Worth a look at the cache before saying no.
            needed_s = self._needed_s(len(new.prompt) - self._num_cached(new))
        if now + needed_s >= new.deadline:
            raise DeadlineTooClose(needed_s=needed_s, left_s=new.deadline - now)

    def _needed_s(self, num_tokens: int) -> float:
        # What was measured counts only while others measure it anew.
        is_busy = self._registry.num_live > 0
        ahead = self._lifecycle.room.num_new_tokens
        return self._pace.prefill_s(ahead + num_tokens) if is_busy else 0.0

    def _num_cached(self, new: NewRequest) -> int:
        epoch = self._lifecycle.epoch
        if epoch is None or not (new.reads_cache and self._policy.use_prefix_cache):
            return 0
        cache = epoch.pool.cache
        prompt = new.prompt.astype("<i4").tobytes()
        match = cache.match(cache.root(new.tenant), prompt, max_blocks=len(new.prompt))
        return len(match.blocks) * epoch.limits.block_size

    def _retry_after_s(self) -> float:
        measured = self._pace.prefill_s(self._lifecycle.room.num_new_tokens)
        return min(max(measured, _LEAST_RETRY_S), _MOST_RETRY_S) if measured else _FIRST_RETRY_S

    # --- new ---

    def _accept(self, new: NewRequest, max_tokens: int, now: float) -> None:
        self._num_arrivals += 1
        request = checks.make_request(
            new,
            order=self._num_arrivals,
            tenant_index=self._lifecycle.shares.enter(new.tenant),
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
            self._take_resumed(sequence, resumed, now)
            if sequence.end is None:
                self._lifecycle.room.wait(sequence, now)
