"""What operators and clients ask about the core, as messages. Reads the core; only a flush changes
anything.
"""

import numpy as np

from octavo.internal.v1 import control_pb2 as control
from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import admin_pb2 as admin
from scheduler_svc.control.child_protocol import FlushOrder, ListOrder
from scheduler_svc.core.core import Core
from scheduler_svc.core.estimate import Question
from scheduler_svc.core.listing import (
    OutputView,
    RequestView,
    TenantView,
    WaitReason,
    Wish,
)

_DEFAULT_LIMIT = 100
_WAIT_REASONS: dict[WaitReason | None, admin.WaitReason.ValueType] = {
    reason: admin.WaitReason.Value(f"WAIT_REASON_{reason.name}") for reason in WaitReason
}
_WAIT_REASONS[None] = admin.WAIT_REASON_UNSPECIFIED


def answer_estimate(core: Core, asked: engine.Estimate) -> engine.EstimateAnswer:
    """What a request would meet. Raises ValueError if it holds what no frontend sends."""
    if not asked.tenant_weight >= 0:
        raise ValueError(f"tenant_weight must not be negative, got {asked.tenant_weight}")
    estimate = core.estimate(
        Question(
            tenant=asked.tenant,
            tenant_weight=asked.tenant_weight or 1.0,
            prompt=np.frombuffer(asked.prompt_tokens, "<i4").astype(np.int32),
            priority=asked.priority,
            reads_cache=not asked.skip_cache_read,
        )
    )
    first_token_s = estimate.first_token_s
    return engine.EstimateAnswer(
        call=asked.call,
        num_cached_tokens=estimate.num_cached_tokens,
        num_requests_ahead=estimate.num_requests_ahead,
        num_tokens_ahead=estimate.num_tokens_ahead,
        first_token_us=None if first_token_s is None else round(first_token_s * 1e6),
    )


def answer_operator(core: Core, order: ListOrder | FlushOrder, now: float) -> control.ChildMessage:
    """What an operator asked for."""
    if isinstance(order, FlushOrder):
        flushed = admin.FlushPrefixCacheResponse(num_blocks=core.flush_prefix_cache())
        return control.ChildMessage(
            cache_flushed=control.CacheFlushed(call=order.call, response=flushed)
        )
    response = _list(core, order.request, now)
    return control.ChildMessage(
        request_list=control.RequestList(call=order.call, response=response)
    )


def _list(core: Core, asked: admin.ListRequestsRequest, now: float) -> admin.ListRequestsResponse:
    wish = Wish(
        limit=asked.limit if asked.HasField("limit") else _DEFAULT_LIMIT,
        after=asked.after,
        tenant=asked.tenant if asked.HasField("tenant") else None,
        wants_blocks=asked.include_blocks,
    )
    listing = core.list_requests(wish, now)
    return admin.ListRequestsResponse(
        requests=[_request(view) for view in listing.requests],
        num_live_requests=listing.num_live,
        next_after=listing.next_after,
        tenants=[_tenant(view) for view in listing.tenants],
    )


def _request(view: RequestView) -> admin.RequestState:
    return admin.RequestState(
        tenant=view.tenant,
        request_id=view.request_id,
        priority=view.priority,
        age_s=view.age_s,
        prompt_tokens=view.num_prompt_tokens,
        cached_tokens=view.num_cached_tokens,
        has_reader=view.has_reader,
        outputs=[_output(output) for output in view.outputs],
    )


def _output(view: OutputView) -> admin.OutputState:
    return admin.OutputState(
        index=view.index,
        phase=_phase(view),
        wait_reason=_WAIT_REASONS[view.wait_reason],
        num_tokens=view.num_tokens,
        num_computed_tokens=view.num_computed_tokens,
        num_blocks=view.num_blocks,
        block_ids=view.block_ids,
        num_preemptions=view.num_preemptions,
    )


def _phase(view: OutputView) -> admin.OutputPhase.ValueType:
    if view.has_ended:
        return admin.OUTPUT_PHASE_ENDED
    if view.wait_reason is not None:
        return admin.OUTPUT_PHASE_WAITING
    return admin.OUTPUT_PHASE_DECODE if view.is_decoding else admin.OUTPUT_PHASE_PREFILL


def _tenant(view: TenantView) -> admin.TenantState:
    return admin.TenantState(
        tenant=view.tenant,
        num_live_requests=view.num_live,
        num_waiting_requests=view.num_waiting,
        prompt_tokens=view.num_prompt_tokens,
        cached_tokens=view.num_cached_tokens,
    )
