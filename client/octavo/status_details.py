"""Reads google.rpc.Status, the error details that gRPC services attach to a failed call.

The public definitions (googleapis' google/rpc/status.proto and error_details.proto) come with a
package that a client does not otherwise need; the few messages read here are declared instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from octavo.declared_messages import declared_classes
from octavo.errors import Violation

# Field names and numbers of the published messages; only what is read here.
_MESSAGES: Mapping[str, Mapping[str, int]] = {
    "Status": {"int32 code": 1, "string message": 2, "repeated .google.protobuf.Any details": 3},
    "Pair": {"string key": 1, "string value": 2},  # an entry of a map, as maps are on the wire
    "ErrorInfo": {"string reason": 1, "string domain": 2, "repeated .google.rpc.Pair metadata": 3},
    "FieldViolation": {"string field": 1, "string description": 2},
    "BadRequest": {"repeated .google.rpc.FieldViolation field_violations": 1},
    "RetryInfo": {".google.protobuf.Duration retry_delay": 1},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusDetails:
    """What a failed call says beside its code and message."""

    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    violations: tuple[Violation, ...] = ()
    retry_after_s: float | None = None


def decode_status_details(data: bytes) -> StatusDetails:
    """The details in a `grpc-status-details-bin` value; empty if it cannot be read."""
    try:
        status = _CLASSES["Status"].FromString(data)
        found = {any_.type_url.rpartition(".")[2]: any_.value for any_ in reversed(status.details)}
        info = _CLASSES["ErrorInfo"].FromString(found.get("ErrorInfo", b""))
        request = _CLASSES["BadRequest"].FromString(found.get("BadRequest", b""))
        retry = _CLASSES["RetryInfo"].FromString(found.get("RetryInfo", b""))
    except DecodeError:
        return StatusDetails()
    return StatusDetails(
        reason=info.reason,
        metadata={pair.key: pair.value for pair in info.metadata},
        violations=tuple(Violation(v.field, v.description) for v in request.field_violations),
        retry_after_s=_seconds(retry.retry_delay) if retry.HasField("retry_delay") else None,
    )


def _seconds(duration: Any) -> float:
    return float(duration.seconds + duration.nanos / 1e9)


_CLASSES = declared_classes("google.rpc", _MESSAGES)
