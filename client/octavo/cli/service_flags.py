"""The flags that say which service to call and how to connect to it. Knows no request."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from octavo.errors import OctavoError


def add_service_flags(
    parser: argparse.ArgumentParser, *, variable: str, default: str
) -> argparse._ArgumentGroup:
    """Adds them as a group; the target is that of an environment variable, else `default`."""
    service = parser.add_argument_group("service")
    service.add_argument(
        "--target",
        default=os.environ.get(variable, default),
        help=f"host:port or unix:/path of the service (default: ${variable}, else %(default)s)",
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
    return service


def api_key_from(arguments: argparse.Namespace) -> str | None:
    """The key; never from the command line, which every user of a machine can read."""
    path: Path | None = arguments.api_key_file
    if path is None:
        return os.environ.get("OCTAVO_API_KEY") or None
    return _read("--api-key-file", path).decode("utf-8", "replace").strip()


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Contents of PEM files."""

    ca: bytes | None
    certificate: bytes | None
    key: bytes | None = field(repr=False)


def tls_files_from(arguments: argparse.Namespace) -> TlsFiles | None:
    """What a connection with TLS needs; None is without TLS."""
    ca, certificate, key = arguments.tls_ca, arguments.tls_cert, arguments.tls_key
    if (certificate is None) != (key is None):
        raise OctavoError("--tls-cert and --tls-key belong together: give both")
    if not (arguments.tls or ca or certificate):
        return None
    return TlsFiles(
        ca=_read("--tls-ca", ca) if ca else None,
        certificate=_read("--tls-cert", certificate) if certificate else None,
        key=_read("--tls-key", key) if key else None,
    )


def credentials_from(arguments: argparse.Namespace) -> grpc.ChannelCredentials | None:
    """How to connect; None is without TLS."""
    files = tls_files_from(arguments)
    if files is None:
        return None
    return grpc.ssl_channel_credentials(
        root_certificates=files.ca, private_key=files.key, certificate_chain=files.certificate
    )


def _read(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OctavoError(f"{flag} {path}: {error.strerror}") from error
