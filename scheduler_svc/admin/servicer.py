"""AdminService over the supervisor's latest view, and what the core answers. Knows no request."""

import os
from collections.abc import Callable

import grpc.aio

from octavo.installed import installed_version
from octavo.internal.v1 import control_pb2 as control
from octavo.v1 import admin_pb2 as admin
from octavo.v1 import admin_pb2_grpc
from scheduler_svc.config import ServiceConfig
from scheduler_svc.control.hub import ControlHub, NoAnswer
from scheduler_svc.metrics.exporter import SnapshotStore
from scheduler_svc.metrics.recent import Recent, Times
from scheduler_svc.supervisor.child import Child
from scheduler_svc.supervisor.state import ReplicaState

_MAX_LISTED = 1000
_ANSWER_LIMIT_S = 5.0

Context = grpc.aio.ServicerContext[object, object]


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """GetState answers from what is at most about a second old, the rest asks the core."""

    def __init__(
        self,
        config: ServiceConfig,
        *,
        state: ReplicaState,
        store: SnapshotStore,
        children: list[Child],
        hub: ControlHub,
        drain: Callable[[float | None], None],
    ) -> None:
        self._config = config
        self._state = state
        self._store = store
        self._children = children
        self._hub = hub
        self._drain = drain

    async def GetState(
        self, request: admin.GetStateRequest, context: Context
    ) -> admin.GetStateResponse:
        """The replica, its processes and its core."""
        return admin.GetStateResponse(
            replica=self._config.replica,
            model=self._config.served_model_name,
            version=installed_version(),
            is_ready=self._state.readiness.is_ready,
            not_ready_reason=self._state.readiness.reason,
            is_draining=self._state.is_draining,
            processes=self._processes(),
            core=self._core(),
            traffic=_traffic(self._state.recent),
        )

    async def ListRequests(
        self, request: admin.ListRequestsRequest, context: Context
    ) -> admin.ListRequestsResponse:
        """What runs and what waits."""
        if request.HasField("limit") and not 1 <= request.limit <= _MAX_LISTED:
            text = f"limit must be 1 to {_MAX_LISTED}, got {request.limit}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        if request.after < 0:
            text = f"after must not be negative, got {request.after}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)

        def order(call: int) -> control.ControlMessage:
            asked = control.ListRequests(call=call, request=request)
            return control.ControlMessage(list_requests=asked)

        return (await self._ask_core(order, context)).request_list.response

    async def FlushPrefixCache(
        self, request: admin.FlushPrefixCacheRequest, context: Context
    ) -> admin.FlushPrefixCacheResponse:
        """Forgets cached prefixes."""

        def order(call: int) -> control.ControlMessage:
            asked = control.FlushPrefixCache(call=call)
            return control.ControlMessage(flush_prefix_cache=asked)

        return (await self._ask_core(order, context)).cache_flushed.response

    async def _ask_core(
        self, order: Callable[[int], control.ControlMessage], context: Context
    ) -> control.ChildMessage:
        try:
            return await self._hub.ask("core", order, limit_s=_ANSWER_LIMIT_S)
        except NoAnswer as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise AssertionError("abort raises") from error

    async def Drain(self, request: admin.DrainRequest, context: Context) -> admin.DrainResponse:
        """Begins a drain, or finds one running."""
        limit = request.limit_s if request.HasField("limit_s") else None
        if limit is not None and not 0 <= limit <= 86400:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"limit_s must be 0 to 86400, got {limit:g}"
            )
        self._drain(limit)
        live = self._store.gauge("num_requests_live")
        return admin.DrainResponse(num_live_requests=int(live))

    def _processes(self) -> list[admin.ProcessState]:
        processes = [
            admin.ProcessState(role="supervisor", name="supervisor", pid=os.getpid(), is_up=True)
        ]
        processes += [
            admin.ProcessState(
                role=child.role,
                name=child.name,
                pid=child.pid,
                is_up=child.is_running(),
                num_restarts=child.num_restarts,
            )
            for child in self._children
        ]
        group = self._state.group
        for rank, pid in enumerate(group.pids if group is not None else ()):
            restarts = group.num_restarts if group is not None else 0
            processes.append(
                admin.ProcessState(
                    role="worker",
                    name=f"rank-{rank}",
                    pid=pid,
                    is_up=pid != 0,
                    num_restarts=restarts,
                )
            )
        return processes

    def _core(self) -> admin.CoreState:
        def read(name: str) -> int:
            return int(self._store.gauge(name))

        return admin.CoreState(
            num_running=read("num_requests_running"),
            num_waiting=read("num_requests_waiting"),
            num_waiting_tokens=read("num_tokens_waiting"),
            num_blocks_in_use=read("kv_blocks_in_use"),
            num_blocks_cached=read("kv_blocks_cached"),
            num_blocks_fenced=read("kv_blocks_fenced"),
            num_blocks_free=read("kv_blocks_free"),
            block_size=self._config.block_size,
            num_steps=read("steps_done"),
            epoch=read("epoch"),
        )


def _traffic(recent: Recent) -> admin.RecentTraffic:
    return admin.RecentTraffic(
        window_s=recent.window_s,
        generated_tokens_per_s=recent.generated_tokens_per_s,
        prompt_tokens_per_s=recent.prompt_tokens_per_s,
        requests_per_s=recent.requests_per_s,
        time_to_first_token=_times(recent.first_token),
        inter_token=_times(recent.inter_token),
    )


def _times(times: Times) -> admin.RecentTimes:
    return admin.RecentTimes(count=times.count, p50_s=times.p50_s, p99_s=times.p99_s)
