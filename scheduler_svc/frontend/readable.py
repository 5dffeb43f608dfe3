"""Handlers that are called for every message, those that cannot be read among them.

gRPC itself ends such a call with UNKNOWN and a stack trace in the log; here it is refused like any
other request that breaks a rule. Knows no method.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Refuse = Callable[[Context, str], Awaitable[None]]
"""Ends the call of a method whose message cannot be read."""

_UNREADABLE = object()


class MethodHandlers:
    """Takes the place of a server, to be told what it would serve."""

    def __init__(self) -> None:
        self.service = ""
        self.by_method: dict[str, Handler] = {}

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """The same again, in another form."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        """All methods of a service."""
        self.service = service
        self.by_method.update(handlers)


def readable_handlers(
    add: Callable[[grpc.aio.Server], None], *, refuse: Refuse
) -> grpc.GenericRpcHandler:
    """The handlers that `add` would add to a server, with `refuse` for what they cannot read."""
    found = MethodHandlers()
    add(cast(grpc.aio.Server, found))
    return grpc.method_handlers_generic_handler(
        found.service,
        {name: _readable(handler, name, refuse) for name, handler in found.by_method.items()},
    )


def _readable(handler: Any, name: str, refuse: Refuse) -> Handler:
    parse, inner = handler.request_deserializer, handler.unary_stream or handler.unary_unary

    def read(data: bytes) -> object:
        try:
            return parse(data)
        except DecodeError:
            return _UNREADABLE

    async def call(request: object, context: Context) -> object:
        if request is _UNREADABLE:
            await refuse(context, name)
        return await inner(request, context)

    make: Any = (
        grpc.unary_stream_rpc_method_handler
        if handler.unary_stream
        else grpc.unary_unary_rpc_method_handler
    )
    return cast(Handler, make(call, read, handler.response_serializer))
