"""The core's refusals as errors of a call. Knows nothing of requests."""

from __future__ import annotations

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.frontend.errors import (
    BodyDiffers,
    CallError,
    DeadlinePassed,
    GenerationFailed,
    InvalidRequest,
    Overloaded,
    RequestUnknown,
    Unavailable,
    Violation,
)

_UNAVAILABLE = {
    engine.REJECT_REASON_DRAINING: "DRAINING",
    engine.REJECT_REASON_NO_WORKERS: "NO_WORKERS",
}
_OVERLOADED = {
    engine.REJECT_REASON_QUEUE_FULL: "QUEUE_FULL",
    engine.REJECT_REASON_TENANT_LIMIT: "TENANT_LIMIT",
}
_PLAIN: dict[engine.RejectReason.ValueType, type[CallError]] = {
    engine.REJECT_REASON_DEADLINE: DeadlinePassed,
    engine.REJECT_REASON_BODY_DIFFERS: BodyDiffers,
    engine.REJECT_REASON_NOT_FOUND: RequestUnknown,
    # what the parser lets through, the core must take: a fault of ours
    engine.REJECT_REASON_INVALID: GenerationFailed,
}


def refusal(rejected: engine.Rejected, *, form_field: str = "") -> CallError:
    """What the caller is told; `form_field` is where the request's grammar came from."""
    error = _error(rejected, form_field or "generation.structured_output")
    error.comes_from_core = True
    return error


def _error(rejected: engine.Rejected, form_field: str) -> CallError:
    reason, text, retry_after_ms = rejected.reason, rejected.message, rejected.retry_after_ms
    if reason == engine.REJECT_REASON_PROMPT_TOO_LONG:
        return InvalidRequest([Violation(field="generation.prompt", rule=text)])
    if reason == engine.REJECT_REASON_GRAMMAR:
        return InvalidRequest([Violation(field=form_field, rule=text)])
    if reason in _UNAVAILABLE:
        return Unavailable(text, reason=_UNAVAILABLE[reason], retry_after_ms=retry_after_ms)
    if reason in _OVERLOADED:
        return Overloaded(text, reason=_OVERLOADED[reason], retry_after_ms=retry_after_ms)
    return _PLAIN.get(reason, GenerationFailed)(text)
