"""Certificates for tests, made by the openssl command, valid for localhost and 127.0.0.1."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key."""

    certificate: Path
    key: Path


def make_authority(folder: Path, name: str) -> Pair:
    """An authority of its own."""
    pair = _pair(folder, name)
    _request(pair, name, "-addext", "keyUsage=critical,keyCertSign")
    return pair


def make_certificate(folder: Path, name: str, *, signed_by: Pair) -> Pair:
    """A certificate for a server here or for a client."""
    pair = _pair(folder, name)
    _request(
        pair,
        name,
        *("-CA", str(signed_by.certificate), "-CAkey", str(signed_by.key)),
        *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        *("-addext", "basicConstraints=critical,CA:FALSE"),
    )
    return pair


def _pair(folder: Path, name: str) -> Pair:
    return Pair(folder / f"{name}.crt", folder / f"{name}.key")


def _request(pair: Pair, name: str, *more: str) -> None:
    subprocess.run(
        [
            *("openssl", "req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", str(pair.key), "-out", str(pair.certificate), *more),
        ],
        check=True,
        capture_output=True,
        timeout=30,
    )
