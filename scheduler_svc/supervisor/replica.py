"""Builds a replica's object graph, in one place, and runs it."""

import logging
import time
from pathlib import Path

import grpc
import grpc.aio
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from octavo.v1 import admin_pb2, admin_pb2_grpc
from scheduler_svc.addresses import Addresses, write_addresses
from scheduler_svc.admin.servicer import AdminServicer
from scheduler_svc.config import ServiceConfig, write_config
from scheduler_svc.control.hub import ControlHub
from scheduler_svc.endpoints import Endpoints
from scheduler_svc.metrics.exporter import SnapshotStore
from scheduler_svc.metrics.http import MetricsServer
from scheduler_svc.security.guard import KeyGuard
from scheduler_svc.security.keys import key_ring
from scheduler_svc.security.ports import admin_tls
from scheduler_svc.security.tls import server_credentials
from scheduler_svc.seldom_log import SeldomLog
from scheduler_svc.supervisor.child import Child
from scheduler_svc.supervisor.commands import core_command, frontend_command, workers_command
from scheduler_svc.supervisor.ports import AddressTaken, InferenceAddress
from scheduler_svc.supervisor.state import ReplicaState
from scheduler_svc.supervisor.supervisor import Supervisor

_LOG = logging.getLogger(__name__)
# the supervisor's loop looks around every half second; silence for this long means it is stuck
_LOOP_AGE_LIMIT_S = 5.0


async def run_replica(config: ServiceConfig, *, run_dir: Path, address: InferenceAddress) -> int:
    """Runs a replica to its end; returns the exit status. Raises AddressTaken."""
    state, store = ReplicaState(), SnapshotStore()
    children = _children(config, run_dir)
    hub = ControlHub(Endpoints(run_dir).control, clock=time.monotonic)
    supervisor = Supervisor(config, hub=hub, children=children, state=state, store=store)
    servicer = AdminServicer(
        config, state=state, store=store, children=children, hub=hub, drain=supervisor.drain
    )
    metrics = _metrics_server(state, store)
    # a port that is taken is an error, not a port to share
    admin = grpc.aio.server(interceptors=_admin_guards(config), options=[("grpc.so_reuseport", 0)])
    try:
        ports = Addresses(
            inference=address.target,
            metrics=_listen_metrics(metrics, config),
            admin=await _listen_admin(
                admin, servicer, config, credentials=server_credentials(admin_tls(config))
            ),
        )
        hub.bind()
        write_config(config, run_dir)
        write_addresses(ports, run_dir)
        _LOG.info(
            "%s on %s, admin on %s, metrics on %s",
            *(config.served_model_name, ports.inference, ports.admin, ports.metrics),
        )
        return await supervisor.run()
    finally:
        await admin.stop(0.2)
        metrics.stop()
        hub.close()


def _children(config: ServiceConfig, run_dir: Path) -> list[Child]:
    children = [Child(role="core", name="core", command=core_command(run_dir))]
    for index in range(config.frontends):
        name = f"frontend-{index}"
        command = frontend_command(run_dir, name)
        children.append(Child(role="frontend", name=name, command=command))
    if config.workers == "local":
        command = workers_command(run_dir, config)
        children.append(Child(role="worker", name="workers", command=command))
    return children


def _metrics_server(state: ReplicaState, store: SnapshotStore) -> MetricsServer:
    registry = CollectorRegistry()
    registry.register(store)
    return MetricsServer(
        registry,
        is_alive=lambda: time.monotonic() - state.looked_at < _LOOP_AGE_LIMIT_S,
        not_ready=lambda: "" if state.readiness.is_ready else state.readiness.reason,
    )


def _listen_metrics(metrics: MetricsServer, config: ServiceConfig) -> str:
    try:
        port = metrics.start(config.metrics_host, config.metrics_port)
    except OSError as error:
        flags = f"--metrics-host {config.metrics_host} --metrics-port {config.metrics_port}"
        raise AddressTaken(f"{flags}: {error.strerror or error}") from error
    return f"{config.metrics_host}:{port}"


def _admin_guards(config: ServiceConfig) -> list[KeyGuard]:
    keys = key_ring(flag="--admin-keys-file", path=config.admin_keys_file)
    if keys is None:
        return []
    denials = SeldomLog(_LOG, "admin port: refused %d calls without a known key")
    return [KeyGuard(keys, on_denial=denials.note)]


async def _listen_admin(
    server: grpc.aio.Server,
    servicer: AdminServicer,
    config: ServiceConfig,
    *,
    credentials: grpc.ServerCredentials | None,
) -> str:
    admin_pb2_grpc.add_AdminServiceServicer_to_server(servicer, server)
    names = (admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name,)
    reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
    target = f"{config.admin_host}:{config.admin_port}"
    try:
        if credentials is None:
            port = server.add_insecure_port(target)
        else:
            port = server.add_secure_port(target, credentials)
    except RuntimeError as error:
        flags = f"--admin-host {config.admin_host} --admin-port {config.admin_port}"
        raise AddressTaken(f"{flags}: cannot listen, the port is in use or not allowed") from error
    await server.start()
    return f"{config.admin_host}:{port}"
