"""Reads google.rpc.Status, the error details that gRPC services attach to a failed call.

The public definitions (googleapis/google/rpc/status.proto and error_details.proto) come with a
package of their own that a client does not otherwise need. The four messages read here are
declared to the protobuf runtime instead, in a pool of their own: a program that imports
googleapis-common-protos as well meets no second registration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, message_factory
from google.protobuf.message import DecodeError

from octavo.errors import Violation

_FIELD = descriptor_pb2.FieldDescriptorProto
_REPEATED = "repeated "
_SCALARS = {"int32": _FIELD.TYPE_INT32, "string": _FIELD.TYPE_STRING}

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


def _declared_classes() -> Mapping[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    for known in (any_pb2.DESCRIPTOR, duration_pb2.DESCRIPTOR):
        pool.AddSerializedFile(known.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(
        name="octavo/status_details.proto",
        package="google.rpc",
        syntax="proto3",
        dependency=[any_pb2.DESCRIPTOR.name, duration_pb2.DESCRIPTOR.name],
        message_type=[
            descriptor_pb2.DescriptorProto(name=name, field=_fields(fields))
            for name, fields in _MESSAGES.items()
        ],
    )
    pool.AddSerializedFile(file.SerializeToString())
    names = {name: pool.FindMessageTypeByName(f"google.rpc.{name}") for name in _MESSAGES}
    return {name: message_factory.GetMessageClass(found) for name, found in names.items()}


def _fields(fields: Mapping[str, int]) -> Sequence[descriptor_pb2.FieldDescriptorProto]:
    return [_declared_field(declaration, number) for declaration, number in fields.items()]


def _declared_field(declaration: str, number: int) -> descriptor_pb2.FieldDescriptorProto:
    is_repeated = declaration.startswith(_REPEATED)
    kind, name = declaration.removeprefix(_REPEATED).split(" ")
    return descriptor_pb2.FieldDescriptorProto(
        name=name,
        number=number,
        label=_FIELD.LABEL_REPEATED if is_repeated else _FIELD.LABEL_OPTIONAL,
        type=_SCALARS.get(kind, _FIELD.TYPE_MESSAGE),
        type_name=None if kind in _SCALARS else kind,
    )


_CLASSES = _declared_classes()
