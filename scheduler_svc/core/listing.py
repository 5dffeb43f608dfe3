"""What lives, as values that stay as they are. Reads everything and changes nothing."""

import enum
from collections import Counter
from dataclasses import dataclass

from scheduler_svc.core.epoch import Epoch
from scheduler_svc.core.lifecycle import Lifecycle
from scheduler_svc.core.registry import Registry
from scheduler_svc.core.request import Request
from scheduler_svc.core.sequence import Phase, Sequence

_MAX_TENANTS = 64
# Block ids in one listing; it ends with the request that reaches this.
_MAX_BLOCK_IDS = 65_536


class WaitReason(enum.Enum):
    """Why an output does not run."""

    TURN = "turn"  # others are before it, or the step's budget is spent
    SLOT = "slot"
    BLOCKS = "blocks"
    PROMPT = "prompt"  # another output computes it
    READER = "reader"  # nobody reads it
    ALONE = "alone"  # a suspect
    WORKERS = "workers"
    RESULTS = "results"  # preempted, with tokens in flight


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits for one reason."""

    num_outputs: int
    num_tokens: int  # known ones, of prompts and of outputs so far


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputView:
    """One output."""

    index: int
    has_ended: bool
    is_decoding: bool
    wait_reason: WaitReason | None  # None: it runs, or has ended
    num_tokens: int
    num_computed_tokens: int
    num_blocks: int
    block_ids: tuple[int, ...]
    num_preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """One request."""

    order: int
    tenant: str
    request_id: str
    priority: int
    age_s: float
    num_prompt_tokens: int
    num_cached_tokens: int
    has_reader: bool
    outputs: tuple[OutputView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantView:
    """One tenant."""

    tenant: str
    num_live: int
    num_waiting: int
    num_prompt_tokens: int
    num_cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What to list."""

    limit: int
    after: int = 0  # the order of the last one listed before
    tenant: str | None = None
    wants_blocks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Living requests, the oldest first."""

    requests: tuple[RequestView, ...]
    num_live: int
    next_after: int  # 0: no more follow
    tenants: tuple[TenantView, ...]


def list_requests(wish: Wish, lifecycle: Lifecycle, registry: Registry, now: float) -> Listing:
    """A consistent view: nothing happens meanwhile."""
    living = [each for each in registry.living() if wish.tenant in (None, each.new.tenant)]
    candidates = [request for request in living if request.order > wish.after]
    views: list[RequestView] = []
    num_ids = 0
    for request in candidates[: wish.limit]:
        view = _request_view(request, lifecycle, now, wants_blocks=wish.wants_blocks)
        views.append(view)
        num_ids += sum(len(output.block_ids) for output in view.outputs)
        if num_ids >= _MAX_BLOCK_IDS:
            break
    has_more = len(views) < len(candidates)
    return Listing(
        requests=tuple(views),
        num_live=len(living),
        next_after=views[-1].order if has_more and views else 0,
        tenants=_tenant_views(wish, lifecycle),
    )


def count_waiting(lifecycle: Lifecycle, registry: Registry) -> dict[WaitReason, Waiting]:
    """Outputs that do not run, by what they wait for; every reason is there."""
    outputs: Counter[WaitReason] = Counter()
    tokens: Counter[WaitReason] = Counter()
    for request in registry.living():
        for sequence in request.sequences:
            reason = _wait_reason(sequence, lifecycle.epoch)
            if reason is not None:
                outputs[reason] += 1
                tokens[reason] += lifecycle.num_known(sequence)
    return {reason: Waiting(outputs[reason], tokens[reason]) for reason in WaitReason}


def _request_view(
    request: Request, lifecycle: Lifecycle, now: float, *, wants_blocks: bool
) -> RequestView:
    return RequestView(
        order=request.order,
        tenant=request.new.tenant,
        request_id=request.new.request_id,
        priority=request.new.priority,
        age_s=max(now - request.arrived_at, 0.0),
        num_prompt_tokens=len(request.new.prompt),
        num_cached_tokens=0 if request.start is None else request.start.num_cached_tokens,
        has_reader=request.has_reader,
        outputs=tuple(
            _output_view(sequence, lifecycle, wants_blocks=wants_blocks)
            for sequence in request.sequences
        ),
    )


def _output_view(sequence: Sequence, lifecycle: Lifecycle, *, wants_blocks: bool) -> OutputView:
    epoch = lifecycle.epoch
    running = epoch if sequence.phase is Phase.RUNNING else None
    num_known = lifecycle.num_known(sequence)
    if sequence.end is not None:
        num_known = sequence.num_prompt + sequence.end.num_tokens
    return OutputView(
        index=sequence.output_index,
        has_ended=sequence.end is not None,
        is_decoding=running is not None and sequence not in running.prefilling,
        wait_reason=_wait_reason(sequence, epoch),
        num_tokens=num_known - sequence.num_prompt,
        num_computed_tokens=0
        if running is None
        else int(running.batch.next_position[sequence.slot]),
        num_blocks=len(sequence.blocks),
        block_ids=tuple(sequence.blocks) if wants_blocks else (),
        num_preemptions=sequence.num_preemptions,
    )


_REASONS_BY_PHASE = {
    Phase.RUNNING: None,
    Phase.ENDED: None,
    Phase.LEAVING: WaitReason.RESULTS,
    Phase.HELD: WaitReason.PROMPT,
}


def _wait_reason(sequence: Sequence, epoch: Epoch | None) -> WaitReason | None:
    if sequence.phase is Phase.HELD and sequence.is_over_pause:
        return WaitReason.READER
    if sequence.phase is not Phase.WAITING:
        return _REASONS_BY_PHASE[sequence.phase]
    if epoch is None:
        return WaitReason.WORKERS
    if sequence.is_suspect:
        return WaitReason.ALONE
    return _lack(sequence, epoch)


def _lack(sequence: Sequence, epoch: Epoch) -> WaitReason:
    """What a sequence in the queue waits for."""
    if not epoch.batch.num_free_slots:
        return WaitReason.SLOT
    offer = sequence.offer
    needed = epoch.num_blocks_for(sequence.num_stored) if offer is None else offer.num_blocks
    is_short = needed + epoch.batch.num_occupied > epoch.pool.num_available
    return WaitReason.BLOCKS if is_short else WaitReason.TURN


def _tenant_views(wish: Wish, lifecycle: Lifecycle) -> tuple[TenantView, ...]:
    hits, census = lifecycle.tenant_hits, lifecycle.room.census
    if wish.tenant is None:
        known = [*hits.most(_MAX_TENANTS), *census.tenants()]
        names = list(dict.fromkeys(known))[:_MAX_TENANTS]
    else:
        names = [wish.tenant]
    return tuple(
        TenantView(
            tenant=name,
            num_live=lifecycle.shares.num_uses(name),
            num_waiting=census.num_requests_of(name),
            num_prompt_tokens=hits.of(name).num_prompt_tokens,
            num_cached_tokens=hits.of(name).num_cached_tokens,
        )
        for name in names
    )
