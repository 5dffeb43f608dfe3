"""The gRPC server of one frontend: its limits and its services. Knows no request."""

from __future__ import annotations

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.v1 import inference_pb2_grpc
from scheduler_svc.config import ServiceConfig
from scheduler_svc.frontend.health import INFERENCE_SERVICE, HealthServicer
from scheduler_svc.frontend.readable import readable_handlers
from scheduler_svc.frontend.reflection import add_reflection
from scheduler_svc.frontend.servicer import InferenceServicer
from scheduler_svc.security.guard import KeyGuard

MAX_RESPONSE_BYTES = 64 * 2**20
"""Far above the largest answer; clients take 4 MiB unless they say otherwise."""
MAX_CALLS = 16_384
"""Open calls of one connection, and calls that wait for the loop. Beyond it gRPC itself turns calls
away, at random and without a reason; before that the core refuses what is too much, with one."""


_HANDSHAKE_LIMIT_MS = 10_000
"""From a connection's first byte to its HTTP/2 settings: who only opens connections loses them."""
_IDLE_LIMIT_MS = 600_000
"""A connection without calls is closed; clients connect again when they need to."""


class CannotListen(Exception):
    """The address cannot be bound; the text names it."""


def make_server(
    inference: InferenceServicer,
    health: HealthServicer,
    *,
    config: ServiceConfig,
    guard: KeyGuard | None,
) -> grpc.aio.Server:
    """A server with all services, not listening yet. Needs a running loop."""
    server = grpc.aio.server(
        interceptors=() if guard is None else (guard,),
        options=[
            ("grpc.so_reuseport", 1),
            ("grpc.max_receive_message_length", config.max_request_bytes),
            ("grpc.max_send_message_length", MAX_RESPONSE_BYTES),
            ("grpc.max_concurrent_streams", MAX_CALLS),
            ("grpc.server.max_pending_requests", MAX_CALLS),
            ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_CALLS),
            # clients may ping every 10 s, with and without calls
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
            # finds clients that vanished without a word, so that their requests end
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.max_pings_without_data", 0),
            *_connection_limits(config),
        ],
    )
    server.add_generic_rpc_handlers(
        (
            readable_handlers(
                lambda one: inference_pb2_grpc.add_InferenceServiceServicer_to_server(
                    inference, one
                ),
                refuse=inference.refuse_unreadable,
            ),
        )
    )
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    health_service = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
    add_reflection(server, (INFERENCE_SERVICE, health_service))
    return server


def _connection_limits(config: ServiceConfig) -> list[tuple[str, int]]:
    limits = [
        ("grpc.max_allowed_incoming_connections", config.max_connections),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_LIMIT_MS),
        ("grpc.max_connection_idle_ms", _IDLE_LIMIT_MS),
    ]
    if config.max_connection_age:
        limits += [
            ("grpc.max_connection_age_ms", max(1, round(1000 * config.max_connection_age))),
            ("grpc.max_connection_age_grace_ms", round(1000 * config.connection_age_grace)),
        ]
    return limits


def listen(
    server: grpc.aio.Server, target: str, *, credentials: grpc.ServerCredentials | None
) -> str:
    """Binds `host:port` or `unix:/path`; returns the address with its port. Raises CannotListen."""
    try:
        if credentials is None:
            port = server.add_insecure_port(target)
        else:
            port = server.add_secure_port(target, credentials)
    except RuntimeError as error:
        raise CannotListen(f"cannot listen on {target}: {error}") from error
    if target.startswith("unix:"):
        return target
    return f"{target.rpartition(':')[0]}:{port}"
