"""Declares a few public messages to the protobuf runtime without their generated stubs.

For messages of other packages of which a client reads a field or two. They live in a pool of their
own, so that a program that imports the real stubs as well meets no second registration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_REPEATED = "repeated "
_SCALARS = {"int32": _FIELD.TYPE_INT32, "string": _FIELD.TYPE_STRING}


def declared_classes(package: str, messages: Mapping[str, Mapping[str, int]]) -> Mapping[str, Any]:
    """Message classes by name; a message is its fields ("[repeated] type name") and their numbers.

    A type is int32 (also for an enum), string, or the full name of a message, with a dot before it.
    """
    pool = descriptor_pool.DescriptorPool()
    for known in (any_pb2.DESCRIPTOR, duration_pb2.DESCRIPTOR):
        pool.AddSerializedFile(known.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(
        name=f"octavo/declared/{package}.proto",
        package=package,
        syntax="proto3",
        dependency=[any_pb2.DESCRIPTOR.name, duration_pb2.DESCRIPTOR.name],
        message_type=[
            descriptor_pb2.DescriptorProto(
                name=name, field=[_field(text, number) for text, number in fields.items()]
            )
            for name, fields in messages.items()
        ],
    )
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }


def _field(declaration: str, number: int) -> descriptor_pb2.FieldDescriptorProto:
    is_repeated = declaration.startswith(_REPEATED)
    kind, name = declaration.removeprefix(_REPEATED).split(" ")
    return descriptor_pb2.FieldDescriptorProto(
        name=name,
        number=number,
        label=_FIELD.LABEL_REPEATED if is_repeated else _FIELD.LABEL_OPTIONAL,
        type=_SCALARS.get(kind, _FIELD.TYPE_MESSAGE),
        type_name=None if kind in _SCALARS else kind,
    )
