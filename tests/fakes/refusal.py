"""How a call of the fake service fails, and the status that says so, details and all."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """How one call fails, and after how many chunks.

    With `is_bare` the status carries no details, as one that a broken way makes up. With
    `after_headers` the call is accepted first, as it is with `after_chunks`.
    """

    code: grpc.StatusCode
    message: str = "refused"
    reason: str = ""
    details: dict[str, str] = field(default_factory=dict)
    violations: tuple[tuple[str, str], ...] = ()
    retry_delay_s: float | None = None
    pushback_ms: str | None = None
    after_chunks: int = 0
    after_headers: bool = False
    is_bare: bool = False


@dataclass(frozen=True)
class RichStatus(grpc.Status):
    """What `abort_with_status` takes."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def rich_status(refusal: Refusal) -> RichStatus:
    """The status of a call that fails like this."""
    metadata: list[tuple[str, str | bytes]] = []
    if not refusal.is_bare:
        metadata.append(("grpc-status-details-bin", _details(refusal).SerializeToString()))
    if refusal.pushback_ms is not None:
        metadata.append(("grpc-retry-pushback-ms", refusal.pushback_ms))
    return RichStatus(refusal.code, refusal.message, tuple(metadata))


def _details(refusal: Refusal) -> status_pb2.Status:
    details = [
        error_details_pb2.ErrorInfo(
            reason=refusal.reason, domain="octavo", metadata=refusal.details
        ),
        error_details_pb2.BadRequest(
            field_violations=[
                error_details_pb2.BadRequest.FieldViolation(field=name, description=rule)
                for name, rule in refusal.violations
            ]
        ),
    ]
    if refusal.retry_delay_s is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(refusal.retry_delay_s * 1000))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=refusal.code.value[0], message=refusal.message)
    for message in details:
        packed = any_pb2.Any()
        packed.Pack(message)
        status.details.append(packed)
    return status
