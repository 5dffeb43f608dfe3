"""Server reflection, v1 and v1alpha: the messages are the same, only the package's name differs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from grpc_reflection.v1alpha import reflection, reflection_pb2

ALPHA_PACKAGE = "grpc.reflection.v1alpha"
PACKAGE = "grpc.reflection.v1"
_SERVICE = "ServerReflection"
_FILE = "grpc/reflection/v1/reflection.proto"


def add_reflection(server: grpc.aio.Server, service_names: Sequence[str]) -> None:
    """Describes the services, and reflection itself, under both names."""
    _register_renamed_file()
    names = (*service_names, f"{PACKAGE}.{_SERVICE}", f"{ALPHA_PACKAGE}.{_SERVICE}")
    servicer = reflection.aio.ReflectionServicer(names, pool=_MemberFindingPool())
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        tuple(
            grpc.method_handlers_generic_handler(
                f"{package}.{_SERVICE}", {"ServerReflectionInfo": method}
            )
            for package in (PACKAGE, ALPHA_PACKAGE)
        )
    )


class _MemberFindingPool:
    """The default pool, which also finds the file of a method or field by its full name."""

    def __init__(self) -> None:
        self._pool = descriptor_pool.Default()

    def __getattr__(self, name: str) -> object:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:  # noqa: N802 - the pool's
        """The file; raises KeyError when there is none."""
        with contextlib.suppress(KeyError):
            return self._pool.FindFileContainingSymbol(symbol)
        with contextlib.suppress(KeyError):
            return self._pool.FindMethodByName(symbol).containing_service.file
        message = self._pool.FindFieldByName(symbol).containing_type
        if message is None:
            raise KeyError(symbol)
        return message.file


def _register_renamed_file() -> None:
    """Puts the v1 file into the pool that reflection describes from."""
    pool = descriptor_pool.Default()
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.name, file.package = _FILE, PACKAGE
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = _renamed(field.type_name)
    for method in file.service[0].method:
        method.input_type = _renamed(method.input_type)
        method.output_type = _renamed(method.output_type)
    pool.AddSerializedFile(file.SerializeToString())  # a second time does nothing


def _renamed(type_name: str) -> str:
    return type_name.replace(f".{ALPHA_PACKAGE}.", f".{PACKAGE}.")
