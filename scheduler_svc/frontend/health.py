"""grpc.health.v1 on asyncio, with a Watch that stays open. Knows nothing of why it is unhealthy."""

# ruff: noqa: N802 - methods are named by the protos

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health_pb2 as health
from grpc_health.v1 import health_pb2_grpc

from octavo.v1 import inference_pb2
from scheduler_svc.frontend.calls import Context

INFERENCE_SERVICE: str = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name
_SERVICES = ("", INFERENCE_SERVICE)


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # shipped without types
    """One status for the process and its service; whoever watches is told of each change."""

    def __init__(self) -> None:
        self._is_serving = False
        self._is_closed = False
        self._changed = asyncio.Event()

    def set_serving(self, *, is_serving: bool) -> None:
        """Tells all watchers, if that is news."""
        if is_serving != self._is_serving:
            self._is_serving = is_serving
            self._notify()

    def close(self) -> None:
        """Ends all watches, so that the server can stop."""
        self._is_closed = True
        self._is_serving = False
        self._notify()

    async def Check(
        self, request: health.HealthCheckRequest, context: Context
    ) -> health.HealthCheckResponse:
        """The status now; NOT_FOUND for a service that is not here."""
        if request.service not in _SERVICES:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service here")
        return health.HealthCheckResponse(status=self._status(request.service))

    async def Watch(self, request: health.HealthCheckRequest, context: Context) -> None:
        """The status now and on each change, until the client leaves."""
        last: int | None = None
        while True:
            # seen before the write: what changes during it is told in the next turn
            changed, is_closed = self._changed, self._is_closed
            status = self._status(request.service)
            if status != last:
                await context.write(health.HealthCheckResponse(status=status))
                last = status
            if is_closed:
                return
            await changed.wait()

    def _status(self, service: str) -> int:
        if service not in _SERVICES:
            return int(health.HealthCheckResponse.SERVICE_UNKNOWN)
        return int(
            health.HealthCheckResponse.SERVING
            if self._is_serving
            else health.HealthCheckResponse.NOT_SERVING
        )

    def _notify(self) -> None:
        """Wakes everybody: each waits for the event that was there when it looked."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
