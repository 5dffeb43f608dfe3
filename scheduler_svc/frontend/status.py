"""A CallError as a rich gRPC status, details and all. Knows nothing of why it was raised.

The pushback for retries goes into the status's own trailing metadata: what is set on the context
before `abort_with_status` is lost.
"""

from dataclasses import dataclass

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from scheduler_svc.frontend.errors import CallError, InvalidRequest

ERROR_DOMAIN = "octavo"
_DETAILS_KEY = "grpc-status-details-bin"
_PUSHBACK_KEY = "grpc-retry-pushback-ms"
# Clients take 8 KiB of trailing metadata by default, and binary values travel as base64.
_MAX_TEXT_CHARACTERS = 400
_MAX_VIOLATION_BYTES = 3000


@dataclass(frozen=True, slots=True)
class RichStatus(grpc.Status):
    """What `abort_with_status` takes."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def rich_status(error: CallError, *, request_id: str) -> RichStatus:
    """The status of a call that ends with this error."""
    text = _shortened(error.message, limit=_MAX_TEXT_CHARACTERS)
    packed = status_pb2.Status(
        code=error.code.value[0],
        message=text,
        details=[_packed(detail) for detail in _details(error, request_id=request_id)],
    )
    metadata: list[tuple[str, str | bytes]] = [(_DETAILS_KEY, packed.SerializeToString())]
    if error.retry_after_ms:
        metadata.append((_PUSHBACK_KEY, str(error.retry_after_ms)))
    return RichStatus(code=error.code, details=text, trailing_metadata=tuple(metadata))


def _details(error: CallError, *, request_id: str) -> list[Message]:
    resumable = "true" if error.is_resumable else "false"
    details: list[Message] = [
        error_details_pb2.ErrorInfo(
            reason=error.reason,
            domain=ERROR_DOMAIN,
            metadata={"request_id": request_id[:128], "resumable": resumable},
        )
    ]
    if isinstance(error, InvalidRequest):
        details.append(_bad_request(error))
    if error.retry_after_ms:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(error.retry_after_ms)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    return details


def _bad_request(error: InvalidRequest) -> error_details_pb2.BadRequest:
    """All violations, or as many as fit, in their order."""
    bad_request = error_details_pb2.BadRequest()
    for violation in error.violations:
        bad_request.field_violations.add(
            field=_shortened(violation.field, limit=200),
            description=_shortened(violation.rule, limit=300),
        )
        if bad_request.ByteSize() > _MAX_VIOLATION_BYTES:
            break
    return bad_request


def _packed(detail: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed


def _shortened(text: str, *, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
