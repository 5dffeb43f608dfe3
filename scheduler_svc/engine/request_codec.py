"""Requests between messages and the core's values: Submit in; Accepted, Rejected, Attached out.

Knows nothing of sockets or of who is told. A frontend has checked a request already; what is
checked here is what would otherwise be misread.
"""

import numpy as np
import numpy.typing as npt

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.core.news import Attached, OutputEnd
from scheduler_svc.core.refusals import (
    BadGrammar,
    BodyDiffers,
    DeadlineTooClose,
    Draining,
    InvalidField,
    NoWorkers,
    PromptTooLong,
    QueueFull,
    Refused,
    TenantLimit,
    UnknownRequest,
)
from scheduler_svc.core.request import EndReason, NewRequest, ResumedOutput
from scheduler_svc.engine.grammar.state import RequestGrammar
from scheduler_svc.engine.rules_codec import (
    decode_sampling,
    decode_wishes,
    encode_sampling,
    encode_wishes,
)

# A prompt that is echoed is in it: what a frontend takes of a request fits.
MAX_BLOB_BYTES = 2**27

_END_REASONS: dict[EndReason, engine.EndReason.ValueType] = {
    reason: engine.EndReason.Value(f"END_REASON_{reason.name}") for reason in EndReason
}
_FROM_END_REASONS = {number: reason for reason, number in _END_REASONS.items()}

_REJECT_REASONS: dict[type[Refused], engine.RejectReason.ValueType] = {
    PromptTooLong: engine.REJECT_REASON_PROMPT_TOO_LONG,
    QueueFull: engine.REJECT_REASON_QUEUE_FULL,
    TenantLimit: engine.REJECT_REASON_TENANT_LIMIT,
    Draining: engine.REJECT_REASON_DRAINING,
    NoWorkers: engine.REJECT_REASON_NO_WORKERS,
    DeadlineTooClose: engine.REJECT_REASON_DEADLINE,
    BodyDiffers: engine.REJECT_REASON_BODY_DIFFERS,
    UnknownRequest: engine.REJECT_REASON_NOT_FOUND,
    InvalidField: engine.REJECT_REASON_INVALID,
    BadGrammar: engine.REJECT_REASON_GRAMMAR,
}
_RETRY_NO_WORKERS_MS = 1000


def decode_submit(
    submit: engine.Submit, *, owner: int, now: float, grammar: RequestGrammar | None = None
) -> NewRequest:
    """A request as the core takes it; its times count from `now`. Raises InvalidField."""
    if len(submit.blob) > MAX_BLOB_BYTES:
        raise InvalidField("blob", f"may have at most {MAX_BLOB_BYTES} bytes")
    return NewRequest(
        tenant=submit.tenant,
        tenant_weight=submit.tenant_weight or 1.0,
        tenant_max_requests=submit.tenant_max_requests,
        request_id=submit.request_id,
        owner=owner,
        number=submit.number,
        blob=submit.blob,
        body_digest=submit.body_digest,
        prompt=_int32s(submit.prompt_tokens, "prompt_tokens"),
        num_outputs=submit.num_outputs,
        max_tokens=submit.max_tokens or None,
        min_tokens=submit.min_tokens,
        eos_token_ids=tuple(submit.eos_token_ids),
        stop_token_ids=tuple(submit.stop_token_ids),
        sampling=decode_sampling(submit.sampling),
        grammar=grammar,
        priority=submit.priority,
        deadline=time_after(submit.deadline_ms, now),
        time_limit_at=time_after(submit.time_limit_ms, now),
        keep_for_s=submit.keep_for_ms / 1000,
        reads_cache=not submit.skip_cache_read,
        stores_cache=not submit.skip_cache_store,
        submitted_at=now - submit.age_ms / 1000,
        resume=tuple(_decode_resumed(output) for output in submit.resume),
        was_accepted=submit.was_accepted,
        is_detached=submit.is_detached,
        num_core_deaths=submit.num_core_deaths,
        records=decode_wishes(submit),
        prompt_records=submit.prompt_records,
    )


def time_after(milliseconds: int, now: float) -> float | None:
    """A time that is so far away, None for 0."""
    return now + milliseconds / 1000 if milliseconds else None


def decode_end_reason(number: engine.EndReason.ValueType) -> EndReason:
    """An end reason. Raises InvalidField for one that is never sent."""
    reason = _FROM_END_REASONS.get(number)
    if reason is None:
        raise InvalidField("reason", f"must be a known end reason, got {number}")
    return reason


def encode_end(end: OutputEnd, *, number: int) -> engine.OutputEnd:
    """An output's end, towards whoever knows its request by `number`."""
    return engine.OutputEnd(
        number=number,
        output_index=end.output_index,
        num_tokens=end.num_tokens,
        reason=_END_REASONS[end.reason],
        stop_token_id=-1 if end.stop_token_id is None else end.stop_token_id,
        message=end.message,
        num_preemptions=end.num_preemptions,
    )


def encode_attached(attached: Attached, *, number: int, now: float) -> engine.Attached:
    """A known request for its new owner, ready to be submitted again."""
    cached = attached.num_cached_tokens
    return engine.Attached(
        number=number,
        submit=_encode_submit(attached.request, deadline=attached.deadline, now=now),
        outputs=[
            engine.AttachedOutput(
                tokens=output.tokens.tobytes(),
                end=None if output.end is None else encode_end(output.end, number=number),
                records=output.records,
            )
            for output in attached.outputs
        ],
        max_tokens=attached.max_tokens,
        num_cached_tokens=-1 if cached is None else cached,
        prompt_records=attached.prompt_records,
    )


def encode_rejected(refusal: Refused, *, number: int) -> engine.Rejected:
    """Why a Submit or Attach was refused."""
    return engine.Rejected(
        number=number,
        reason=_REJECT_REASONS[type(refusal)],
        message=str(refusal),
        retry_after_ms=_retry_after_ms(refusal),
    )


def refusal_label(refusal: Refused) -> str:
    """The refusal's kind, from a fixed set, for metrics."""
    name = engine.RejectReason.Name(_REJECT_REASONS[type(refusal)])
    return name.removeprefix("REJECT_REASON_").lower()


def _encode_submit(request: NewRequest, *, deadline: float | None, now: float) -> engine.Submit:
    submit = engine.Submit(
        tenant=request.tenant,
        request_id=request.request_id,
        blob=request.blob,
        body_digest=request.body_digest,
        prompt_tokens=request.prompt.tobytes(),
        num_outputs=request.num_outputs,
        max_tokens=request.max_tokens or 0,
        min_tokens=request.min_tokens,
        eos_token_ids=request.eos_token_ids,
        stop_token_ids=request.stop_token_ids,
        sampling=encode_sampling(request.sampling),
        priority=request.priority,
        deadline_ms=_milliseconds_until(deadline, now),
        time_limit_ms=_milliseconds_until(request.time_limit_at, now),
        keep_for_ms=round(request.keep_for_s * 1000),
        skip_cache_read=not request.reads_cache,
        skip_cache_store=not request.stores_cache,
        age_ms=max(0, round((now - request.submitted_at) * 1000)),
        num_core_deaths=request.num_core_deaths,
        tenant_weight=request.tenant_weight,
        tenant_max_requests=request.tenant_max_requests,
    )
    encode_wishes(request.records, submit)
    if isinstance(request.grammar, RequestGrammar):
        submit.grammar.CopyFrom(request.grammar.message)
    return submit


def _milliseconds_until(time: float | None, now: float) -> int:
    # 0 would mean none
    return 0 if time is None else max(1, round((time - now) * 1000))


def _decode_resumed(output: engine.ResumedSequence) -> ResumedOutput:
    ended = output.is_finished
    has_stop_id = ended and output.stop_token_id >= 0
    return ResumedOutput(
        tokens=_int32s(output.tokens, "resume.tokens"),
        reason=decode_end_reason(output.reason) if ended else None,
        stop_token_id=output.stop_token_id if has_stop_id else None,
        message=output.message,
        records=output.records,
    )


def _retry_after_ms(refusal: Refused) -> int:
    if isinstance(refusal, QueueFull | TenantLimit):
        return round(refusal.retry_after_s * 1000)
    return _RETRY_NO_WORKERS_MS if isinstance(refusal, NoWorkers) else 0


def _int32s(column: bytes, name: str) -> npt.NDArray[np.int32]:
    if len(column) % 4:
        raise InvalidField(name, f"must be int32 values, got {len(column)} bytes")
    return np.frombuffer(column, np.int32)
