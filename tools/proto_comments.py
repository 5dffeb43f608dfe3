"""Reads the public contract with its comments, as protoc sees them. Writes nothing."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import descriptor_pb2

ROOT = Path(__file__).resolve().parent.parent
_FIELD = descriptor_pb2.FieldDescriptorProto
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6  # field numbers of a FileDescriptorProto
_PARTS = 2  # fields of a message, values of an enum, methods of a service: all are number 2
_SCALARS = {value: name.removeprefix("TYPE_").lower() for name, value in _FIELD.Type.items()}


@dataclass(frozen=True, kw_only=True)
class Member:
    """A field of a message or a value of an enum."""

    name: str
    kind: str
    """Its type as the contract writes it; a value's number."""
    comment: str
    target: str = ""
    """The message or enum that it holds, when that is one of ours."""
    oneof: str = ""


@dataclass(frozen=True, kw_only=True)
class Type:
    """A message or an enum."""

    name: str
    comment: str
    members: tuple[Member, ...]
    is_enum: bool


@dataclass(frozen=True, kw_only=True)
class Method:
    """A call; `request` and `response` are names of messages."""

    name: str
    comment: str
    request: str
    response: str
    is_streamed: bool


@dataclass(frozen=True, kw_only=True)
class Contract:
    """One .proto file."""

    service: str
    comment: str
    methods: tuple[Method, ...]
    types: dict[str, Type]


def read_contract(source: str) -> Contract:
    """The contract in a file below protos/."""
    file = _compiled(source)
    comments = {
        tuple(one.path): " ".join(one.leading_comments.split())
        for one in file.source_code_info.location
    }
    paragraphs = {tuple(one.path): one.leading_comments for one in file.source_code_info.location}
    [service] = file.service
    methods = tuple(
        Method(
            name=one.name,
            comment=comments.get((_SERVICES, 0, _PARTS, index), ""),
            request=one.input_type.rpartition(".")[2],
            response=one.output_type.rpartition(".")[2],
            is_streamed=one.server_streaming,
        )
        for index, one in enumerate(service.method)
    )
    return Contract(
        service=f"{file.package}.{service.name}",
        comment=paragraphs.get((_SERVICES, 0), ""),
        methods=methods,
        types={one.name: one for one in _types(file, comments)},
    )


def _compiled(source: str) -> descriptor_pb2.FileDescriptorProto:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "set"
        subprocess.run(
            [
                *(sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={ROOT / 'protos'}"),
                *("--include_source_info", f"--descriptor_set_out={path}", source),
            ],
            check=True,
        )
        files = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file
    return next(file for file in files if file.name == source)


def _types(
    file: descriptor_pb2.FileDescriptorProto, comments: dict[tuple[int, ...], str]
) -> Iterator[Type]:
    for index, message in enumerate(file.message_type):
        place = (_MESSAGES, index)
        maps = {entry.name: entry for entry in message.nested_type if entry.options.map_entry}
        yield Type(
            name=message.name,
            comment=comments.get(place, ""),
            is_enum=False,
            members=tuple(
                Member(
                    name=field.name,
                    kind=_kind(field, maps),
                    target=_target(field, file.package),
                    comment=comments.get((*place, _PARTS, number), ""),
                    oneof=_oneof(message, field),
                )
                for number, field in enumerate(message.field)
            ),
        )
    for index, enum in enumerate(file.enum_type):
        place = (_ENUMS, index)
        yield Type(
            name=enum.name,
            comment=comments.get(place, ""),
            is_enum=True,
            members=tuple(
                Member(
                    name=value.name,
                    kind=str(value.number),
                    comment=comments.get((*place, _PARTS, number), ""),
                )
                for number, value in enumerate(enum.value)
            ),
        )


def _kind(
    field: descriptor_pb2.FieldDescriptorProto, maps: dict[str, descriptor_pb2.DescriptorProto]
) -> str:
    name = field.type_name.rpartition(".")[2]
    if name in maps:
        key, value = maps[name].field
        return f"map<{_kind(key, {})}, {_kind(value, {})}>"
    kind = name or _SCALARS[field.type]
    if field.label == _FIELD.LABEL_REPEATED:
        return f"repeated {kind}"
    return f"optional {kind}" if field.proto3_optional else kind


def _target(field: descriptor_pb2.FieldDescriptorProto, package: str) -> str:
    owner, _, name = field.type_name.rpartition(".")
    return name if owner == f".{package}" else ""


def _oneof(
    message: descriptor_pb2.DescriptorProto, field: descriptor_pb2.FieldDescriptorProto
) -> str:
    if not field.HasField("oneof_index") or field.proto3_optional:
        return ""
    return message.oneof_decl[field.oneof_index].name
