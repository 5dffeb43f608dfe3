"""Who owns a request, whether anybody reads it, and how long it lives without. Knows no steps."""

from dataclasses import replace

from scheduler_svc.core.batch import Batch
from scheduler_svc.core.lifecycle import Lifecycle
from scheduler_svc.core.limits import Policy
from scheduler_svc.core.news import NO_OWNER, Attached, OutputEnd, OutputSoFar, OwnerReference
from scheduler_svc.core.registry import Registry
from scheduler_svc.core.request import EndReason, Request, ResumedOutput
from scheduler_svc.core.sequence import Sequence


class Ownership:
    """Moves requests between owners."""

    def __init__(self, policy: Policy, *, lifecycle: Lifecycle, registry: Registry) -> None:
        self._policy = policy
        self._lifecycle = lifecycle
        self._registry = registry

    def take_over(
        self, request: Request, *, owner: int, number: int, deadline: float | None, now: float
    ) -> Attached:
        """Gives a request another owner; one that is settled needs none any more."""
        superseded = None
        if not request.is_settled:
            self._registry.check_number(owner, number)
            if request.owner != NO_OWNER:
                superseded = OwnerReference(owner=request.owner, number=request.number)
            self._move(request, owner, number)
            request.deadline = deadline
            self.gain_reader(request, now)
        return self.describe(request, superseded)

    def describe(self, request: Request, superseded: OwnerReference | None) -> Attached:
        """A request as it is, for its new owner."""
        return Attached(
            request=request.new,
            deadline=request.deadline,
            outputs=tuple(self.output_from(each, 0) for each in request.sequences),
            max_tokens=request.max_tokens,
            num_cached_tokens=None if request.start is None else request.start.num_cached_tokens,
            superseded=superseded,
            prompt_records=bytes(request.prompt_records),
        )

    def output_from(self, sequence: Sequence, index: int) -> OutputSoFar:
        """An output's generated tokens from an index on, and its end."""
        self._store_tail(sequence)
        request, end = sequence.request, sequence.end
        if end is not None:
            end = replace(end, owner=request.owner, number=request.number)
        return OutputSoFar(
            tokens=sequence.generated_from(index), end=end, records=sequence.records_from(index)
        )

    def detach(self, request: Request, now: float, *, is_cancelled: bool) -> None:
        """Its reader left: the request lives on for its keep_for_s, or is forgotten at once."""
        self._move(request, NO_OWNER, 0)
        if is_cancelled or request.keep_for_s <= 0:
            self._lifecycle.end_request(request, EndReason.CANCELLED, now)
            self._registry.forget(request)
        else:
            self.lose_reader(request, request.keep_for_s, now)

    def orphan(self, request: Request, now: float) -> None:
        """Its owner is gone: the request lives on for its grace."""
        self._move(request, NO_OWNER, 0)
        self.lose_reader(request, self._grace_of(request), now)

    def doubt(self, request: Request, now: float) -> None:
        """Its owner is unseen: the same, though it is still the owner."""
        self.lose_reader(request, self._grace_of(request), now)

    def lose_reader(self, request: Request, keep_s: float, now: float) -> None:
        """Nobody reads the request: it pauses after so many tokens, and is dropped in a while."""
        if not request.has_reader:
            return
        request.has_reader = False
        request.keep_until = now + keep_s
        for sequence in request.sequences:
            if sequence.end is None:
                self._store_tail(sequence)
                more = max(self._policy.max_orphan_tokens, 1)
                self._set_pause(sequence, sequence.num_stored + more)
        self._registry.watch(request)
        if not request.num_live:
            self._registry.retain(request)

    def gain_reader(self, request: Request, now: float) -> None:
        """Somebody reads the request (again)."""
        request.has_reader = True
        request.keep_until = None
        self._registry.release(request)
        for sequence in request.sequences:
            if sequence.end is None:
                self._set_pause(sequence, None)
        if request.num_live:
            self._lifecycle.room.release_held(request, now)
        else:
            request.keep_until = now + self._policy.max_keep_for_s
        self._registry.watch(request)

    def expire(self, request: Request, now: float) -> None:
        """Does what is due by now: ends a request past its time, forgets what was kept enough."""
        if _is_past(request.deadline, now):
            self._lifecycle.end_request(request, EndReason.DEADLINE, now)
        elif _is_past(request.new.time_limit_at, now):
            self._lifecycle.end_request(request, EndReason.TIME_LIMIT, now)
        elif request.start is None and _is_past(request.queue_until, now):
            waited = f"waited {now - request.arrived_at:.1f} s for the first step"
            message = f"{waited}, the limit is {self._policy.max_queue_s:g} s"
            self._lifecycle.end_request(request, EndReason.QUEUE_TIME, now, message=message)
        if _is_past(request.keep_until, now):
            self._lifecycle.end_request(request, EndReason.CANCELLED, now)
            self._registry.forget(request)
        else:
            self._registry.watch(request)

    def settle(
        self,
        sequence: Sequence,
        *,
        num_tokens: int,
        reason: EndReason,
        message: str,
        now: float,
    ) -> None:
        """Fixes where an output ended, by its owner's word."""
        if sequence.end is None:
            self._lifecycle.end(sequence, reason, now, is_told=False)
        assert sequence.end is not None, "an output that was ended has no end"
        kept = min(num_tokens, sequence.end.num_tokens)
        sequence.cut(kept)
        sequence.end = _settled_end(sequence.end, num_tokens=kept, reason=reason, message=message)
        sequence.is_settled = True
        if sequence.request.is_settled:
            self._retain(sequence.request, now)

    def settle_resumed(self, sequence: Sequence, resumed: ResumedOutput, now: float) -> None:
        """Ends an output that its reader has seen the end of; nothing is told."""
        assert resumed.reason is not None, "an output that goes on has no end"
        self._lifecycle.end(
            sequence,
            resumed.reason,
            now,
            stop_token_id=resumed.stop_token_id,
            message=resumed.message,
            is_told=False,
        )
        sequence.is_settled = True
        if sequence.request.is_settled:
            self._retain(sequence.request, now)

    def _retain(self, request: Request, now: float) -> None:
        """All is said: the request needs no owner, and is kept for those who may ask again."""
        self._move(request, NO_OWNER, 0)
        request.has_reader = False
        request.keep_until = now + request.keep_for_s
        if request.keep_for_s <= 0:
            self._registry.forget(request)
        else:
            self._registry.watch(request)
            self._registry.retain(request)

    def _grace_of(self, request: Request) -> float:
        return max(self._policy.orphan_grace_s, request.keep_for_s)

    def _move(self, request: Request, owner: int, number: int) -> None:
        self._registry.move(request, owner, number)
        for sequence in request.sequences:
            if sequence.slot >= 0:
                self._batch.update_owner(sequence)

    def _set_pause(self, sequence: Sequence, length: int | None) -> None:
        sequence.pause_length = length
        if sequence.slot >= 0:
            self._batch.update_halt(sequence)

    def _store_tail(self, sequence: Sequence) -> None:
        if sequence.slot >= 0:
            self._batch.store_tail(sequence)

    @property
    def _batch(self) -> Batch:
        epoch = self._lifecycle.epoch
        assert epoch is not None, "a sequence has a slot without workers"
        return epoch.batch


def _settled_end(end: OutputEnd, *, num_tokens: int, reason: EndReason, message: str) -> OutputEnd:
    is_same = end.reason is reason
    return replace(
        end,
        num_tokens=num_tokens,
        reason=reason,
        stop_token_id=end.stop_token_id if is_same else None,
        message=message or (end.message if is_same else ""),
    )


def _is_past(time: float | None, now: float) -> bool:
    return time is not None and time <= now
