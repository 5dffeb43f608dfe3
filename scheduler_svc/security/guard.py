"""Turns calls without a known key away before anything of them is read. Knows no method.

Health and reflection are open; everything else a server has, or will have, needs a key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from scheduler_svc.frontend.errors import Unauthenticated
from scheduler_svc.frontend.status import rich_status
from scheduler_svc.security.keys import KeyRing

_OPEN = ("/grpc.health.", "/grpc.reflection.")

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


class KeyGuard(grpc.aio.ServerInterceptor):
    """Asks every call for its key."""

    def __init__(self, keys: KeyRing, *, on_denial: Callable[[], None]) -> None:
        self._keys = keys
        self._on_denial = on_denial

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """The call's own handler, or one that refuses it."""
        if not handler_call_details.method.startswith(_OPEN):
            try:
                self._keys.caller(handler_call_details.invocation_metadata)
            except Unauthenticated as error:
                self._on_denial()
                return _refusing(error)
        return await continuation(handler_call_details)


def _refusing(error: Unauthenticated) -> Handler:
    async def refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort_with_status(rich_status(error, request_id=""))

    # a handler of streams: it does not wait for the request's message
    return grpc.stream_stream_rpc_method_handler(refuse)
