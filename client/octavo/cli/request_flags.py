"""The flags that chat and generate share: which service, how tokens are chosen, when to stop."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import grpc

from octavo.channel import DEFAULT_TARGET
from octavo.client import Client
from octavo.errors import OctavoError
from octavo.sampling import SamplingParams


def add_request_flags(parser: argparse.ArgumentParser) -> None:
    """Adds them, in groups."""
    service = parser.add_argument_group("service")
    service.add_argument(
        "--target",
        default=os.environ.get("OCTAVO_TARGET", DEFAULT_TARGET),
        help="host:port or unix:/path of the service (default: $OCTAVO_TARGET, else %(default)s)",
    )
    service.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="file with the key to show to the service (default: the key itself in "
        "$OCTAVO_API_KEY)",
    )
    service.add_argument("--tls", action="store_true", help="connect with TLS")
    service.add_argument(
        "--tls-ca", type=Path, metavar="FILE", help="certificate authority to trust; implies --tls"
    )
    service.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="certificate to show; implies --tls"
    )
    service.add_argument("--tls-key", type=Path, metavar="FILE", help="private key of --tls-cert")
    service.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="give up after this long (default: never)"
    )
    sampling = parser.add_argument_group("sampling (defaults: the model's own)")
    sampling.add_argument("--temperature", type=float, help="0 is greedy")
    sampling.add_argument("--top-k", type=int, help="keep the k most likely tokens; 0 is off")
    sampling.add_argument("--top-p", type=float, help="keep the likeliest tokens up to this sum")
    sampling.add_argument("--min-p", type=float, help="drop tokens below this share of the best")
    sampling.add_argument("--seed", type=int, help="repeat an answer: its seed is shown with it")
    stopping = parser.add_argument_group("stopping")
    stopping.add_argument("--max-tokens", type=int, help="most tokens of an answer")
    stopping.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end at this text; repeatable"
    )


def client_from(arguments: argparse.Namespace) -> Client:
    """A client of the chosen service."""
    return Client(
        arguments.target,
        timeout=arguments.timeout,
        api_key=_api_key(arguments.api_key_file),
        credentials=_credentials(arguments),
    )


def params_from(arguments: argparse.Namespace) -> SamplingParams:
    """The chosen sampling and stopping."""
    return SamplingParams(
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        min_p=arguments.min_p,
        seed=arguments.seed,
        max_tokens=arguments.max_tokens,
        stop=arguments.stop,
    )


def _api_key(path: Path | None) -> str | None:
    """The key; never from the command line, which every user of a machine can read."""
    if path is None:
        return os.environ.get("OCTAVO_API_KEY") or None
    return _read("--api-key-file", path).decode("utf-8", "replace").strip()


def _credentials(arguments: argparse.Namespace) -> grpc.ChannelCredentials | None:
    ca, certificate, key = arguments.tls_ca, arguments.tls_cert, arguments.tls_key
    if (certificate is None) != (key is None):
        raise OctavoError("--tls-cert and --tls-key belong together: give both")
    if not (arguments.tls or ca or certificate):
        return None
    return grpc.ssl_channel_credentials(
        root_certificates=_read("--tls-ca", ca) if ca else None,
        private_key=_read("--tls-key", key) if key else None,
        certificate_chain=_read("--tls-cert", certificate) if certificate else None,
    )


def _read(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OctavoError(f"{flag} {path}: {error.strerror}") from error
