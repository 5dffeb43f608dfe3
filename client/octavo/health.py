"""Asks the standard health service (grpc.health.v1) whether requests are welcome."""

from __future__ import annotations

import grpc

from octavo.channel import client_settings, open_channel
from octavo.declared_messages import declared_classes

_METHOD = "/grpc.health.v1.Health/Check"
_SERVING = 1  # the published value of HealthCheckResponse.ServingStatus.SERVING
_CLASSES = declared_classes(
    "grpc.health.v1",
    {"HealthCheckRequest": {"string service": 1}, "HealthCheckResponse": {"int32 status": 1}},
)
_LIMIT_S = 1.0


class HealthProbe:
    """Asks one address, again and again."""

    def __init__(self, target: str) -> None:
        settings = client_settings(
            [target],
            # look again soon at a socket that nobody has listened on yet
            channel_options=(("grpc.max_reconnect_backoff_ms", 100),),
        )
        self._channel = open_channel(settings, target)
        self._check = self._channel.unary_unary(
            _METHOD,
            request_serializer=_CLASSES["HealthCheckRequest"].SerializeToString,
            response_deserializer=_CLASSES["HealthCheckResponse"].FromString,
        )

    def is_serving(self) -> bool:
        """Whether the service answers, within a second, that it serves."""
        try:
            answer = self._check(_CLASSES["HealthCheckRequest"](), timeout=_LIMIT_S)
        except grpc.RpcError:
            return False
        return bool(answer.status == _SERVING)

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()
