"""Maps a failed gRPC call to one error of the tree in `errors.py`. Tries nothing again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import grpc

from octavo.errors import (
    AlreadyExists,
    CallCancelled,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
    ServiceError,
    Superseded,
    Unauthenticated,
    Unavailable,
)
from octavo.status_details import StatusDetails, decode_status_details

_CLASSES: Mapping[grpc.StatusCode, type[ServiceError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: Unauthenticated,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.ABORTED: Superseded,
    grpc.StatusCode.CANCELLED: CallCancelled,
}
# What a broken way makes up by itself: a reset, a lost connection, a proxy that gave up.
_BREAKS = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.CANCELLED,
    }
)
_ACCEPTED_KEY = "octavo-request-id"  # a response header of every accepted generation
_DETAILS_KEY = "grpc-status-details-bin"
_PUSHBACK_KEY = "grpc-retry-pushback-ms"


def service_error(error: grpc.RpcError, *, target: str, request_id: str = "") -> ServiceError:
    """The typed form of what a gRPC call raised."""
    code = error.code()
    # pairs, in a tuple or in aio's Metadata: the two have no type in common
    metadata = dict(cast(Iterable[tuple[str, str | bytes]], error.trailing_metadata() or ()))
    details = decode_status_details(_as_bytes(metadata.get(_DETAILS_KEY, b"")))
    retry_after_s, may_retry = _retry_advice(metadata.get(_PUSHBACK_KEY), details)
    return _CLASSES.get(code, InternalError)(
        _message(code, error.details() or "", details, target),
        code=code.name,
        reason=details.reason,
        request_id=details.metadata.get("request_id", request_id),
        is_resumable=_is_resumable(code, details),
        is_retryable=may_retry and _is_worth_retrying(code, retry_after_s),
        retry_after_s=retry_after_s,
        violations=details.violations,
    )


def error_class(number: int) -> tuple[type[ServiceError], str]:
    """The class and the name of a status code that came as a number."""
    for code, kind in _CLASSES.items():
        if code.value[0] == number:
            return kind, code.name
    names = {code.value[0]: code.name for code in grpc.StatusCode}
    return InternalError, names.get(number, "UNKNOWN")


def was_accepted(error: grpc.RpcError) -> bool:
    """Whether the call had begun: its response headers named the generation."""
    headers = cast(grpc.Call, error).initial_metadata()
    metadata = cast(Iterable[tuple[str, str | bytes]], headers or ())
    return any(key == _ACCEPTED_KEY for key, _ in metadata)


def _is_resumable(code: grpc.StatusCode, details: StatusDetails) -> bool:
    """The service's word; without any, whatever a broken way makes up."""
    said = details.metadata.get("resumable")
    if said is None and not details.reason:
        return code in _BREAKS
    return said == "true"


def _is_worth_retrying(code: grpc.StatusCode, retry_after_s: float | None) -> bool:
    # Without a delay, RESOURCE_EXHAUSTED may just as well say that the message is too large.
    return code is grpc.StatusCode.UNAVAILABLE or (
        code is grpc.StatusCode.RESOURCE_EXHAUSTED and retry_after_s is not None
    )


def _retry_advice(
    pushback: str | bytes | None, details: StatusDetails
) -> tuple[float | None, bool]:
    """The delay the service asks for, and whether it allows to come back at all (gRFC A6)."""
    if pushback is None:
        return details.retry_after_s, True
    text = _as_bytes(pushback).decode("ascii", errors="replace")
    if not text.isdecimal():  # a negative number, or what is no number: do not come back
        return details.retry_after_s, False
    return int(text) / 1000, True


def _message(code: grpc.StatusCode, text: str, details: StatusDetails, target: str) -> str:
    if code is grpc.StatusCode.UNAVAILABLE and not details.reason:
        return f"cannot reach a service at {target}: {text}"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and not details.reason:
        return f"the timeout passed before the call had ended ({text})"
    return text or code.name


def _as_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
