"""Where a client connects and how: target, channel options, metadata. Makes no call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
import grpc.aio

from octavo.errors import InvalidTarget, invalid_field
from octavo.retries import ReconnectPolicy, RetryPolicy

DEFAULT_TARGET = "127.0.0.1:50051"

OptionValue = str | int
MetadataPairs = tuple[tuple[str, str | bytes], ...]

_SCHEMES = ("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:", "vsock:", "xds:")
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+):\d{1,5}")
_API_KEY = re.compile(r"[!-~]+")

_OPTIONS: dict[str, OptionValue] = {
    # a generation may be silent for minutes: find a dead peer, within what servers permit
    "grpc.keepalive_time_ms": 20_000,
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.http2.max_pings_without_data": 0,
    # the service's own limit decides, with a message that names it
    "grpc.max_receive_message_length": -1,
    "grpc.max_send_message_length": -1,
    # room for error details with many violations
    "grpc.max_metadata_size": 64 * 1024,
    # one connection for each client, so that clients spread over the frontends behind a port
    "grpc.use_local_subchannel_pool": 1,
    # retries are RetryPolicy's, and nobody else's
    "grpc.enable_retries": 0,
    "grpc.service_config_disable_resolution": 1,
    # a service that comes back is found within one back-off of RetryPolicy
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 2_000,
    # in spite of its name: how long one attempt to connect may take (a far host, TLS)
    "grpc.min_reconnect_backoff_ms": 2_000,
}


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """What a client knows about its targets and its calls; `timeout_s` None is no limit."""

    targets: tuple[str, ...]
    timeout_s: float | None
    credentials: grpc.ChannelCredentials | None
    metadata: MetadataPairs = field(repr=False)  # holds the API key
    retry: RetryPolicy
    reconnect: ReconnectPolicy
    options: tuple[tuple[str, OptionValue], ...]


def client_settings(
    target: str | Sequence[str],
    *,
    timeout: float | None = None,
    credentials: grpc.ChannelCredentials | None = None,
    api_key: str | None = None,
    metadata: Sequence[tuple[str, str | bytes]] = (),
    retry: RetryPolicy | None = None,
    reconnect: ReconnectPolicy | None = None,
    channel_options: Sequence[tuple[str, OptionValue]] = (),
) -> ClientSettings:
    """The settings of a client from its arguments; raises InvalidTarget, or InvalidRequest."""
    if api_key is not None and not _API_KEY.fullmatch(api_key):
        # gRPC's own complaint would hold the key
        raise invalid_field("api_key", "must be printable ASCII characters without spaces")
    key = () if api_key is None else (("authorization", f"Bearer {api_key}"),)
    return ClientSettings(
        targets=checked_targets(target),
        timeout_s=timeout,
        credentials=credentials,
        metadata=(*key, *metadata),
        retry=retry or RetryPolicy(),
        reconnect=reconnect or ReconnectPolicy(),
        options=tuple({**_OPTIONS, **dict(channel_options)}.items()),
    )


def checked_targets(target: str | Sequence[str]) -> tuple[str, ...]:
    """The targets in a list, or in a text with commas, each once; raises InvalidTarget."""
    if isinstance(target, str):
        # these two schemes have commas of their own
        has_list = not target.startswith(("ipv4:", "ipv6:"))
        target = [one.strip() for one in target.split(",")] if has_list else [target]
    if not target:
        raise InvalidTarget("target: the list is empty, must hold at least one")
    return tuple(dict.fromkeys(checked_target(one) for one in target))


def checked_target(target: str) -> str:
    """The same target, if gRPC can dial it; raises InvalidTarget."""
    if target.startswith(_SCHEMES) or _HOST_AND_PORT.fullmatch(target):
        return target
    advice = "must be host:port, unix:/path or dns:///name:port"
    if target.startswith(("http://", "https://")):
        advice += " (gRPC needs no http://; pass credentials= for TLS)"
    elif target.startswith(("/", ".")):
        advice += f"; for a unix socket write unix:{target}"
    raise InvalidTarget(f"target {target!r}: {advice}")


def open_channel(settings: ClientSettings, target: str) -> grpc.Channel:
    """A channel for blocking calls; connects with the first one."""
    if settings.credentials is None:
        return grpc.insecure_channel(target, options=settings.options)
    return grpc.secure_channel(target, settings.credentials, options=settings.options)


def open_aio_channel(settings: ClientSettings, target: str) -> grpc.aio.Channel:
    """A channel for the running event loop; connects with the first call."""
    if settings.credentials is None:
        return grpc.aio.insecure_channel(target, options=settings.options)
    return grpc.aio.secure_channel(target, settings.credentials, options=settings.options)
