"""AdminService over the supervisor's latest view. Reads snapshots, orders a drain, nothing else."""

import os
from collections.abc import Callable

import grpc.aio

from octavo.installed import installed_version
from octavo.v1 import admin_pb2 as admin
from octavo.v1 import admin_pb2_grpc
from scheduler_svc.config import ServiceConfig
from scheduler_svc.metrics.exporter import SnapshotStore
from scheduler_svc.supervisor.child import Child
from scheduler_svc.supervisor.state import ReplicaState

Context = grpc.aio.ServicerContext[object, object]


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Answers from state that is at most about a second old."""

    def __init__(
        self,
        config: ServiceConfig,
        *,
        state: ReplicaState,
        store: SnapshotStore,
        children: list[Child],
        drain: Callable[[float | None], None],
    ) -> None:
        self._config = config
        self._state = state
        self._store = store
        self._children = children
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
        )

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
