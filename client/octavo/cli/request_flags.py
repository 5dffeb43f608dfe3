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
        "--api-key",
        default=os.environ.get("OCTAVO_API_KEY"),
        help="key to show to the service (default: $OCTAVO_API_KEY)",
    )
    service.add_argument("--tls", action="store_true", help="connect with TLS")
    service.add_argument(
        "--tls-ca", type=Path, metavar="FILE", help="certificate authority to trust; implies --tls"
    )
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
        api_key=arguments.api_key,
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


def _credentials(arguments: argparse.Namespace) -> grpc.ChannelCredentials | None:
    if arguments.tls_ca is None:
        return grpc.ssl_channel_credentials() if arguments.tls else None
    try:
        return grpc.ssl_channel_credentials(arguments.tls_ca.read_bytes())
    except OSError as error:
        raise OctavoError(f"--tls-ca {arguments.tls_ca}: {error.strerror}") from error
