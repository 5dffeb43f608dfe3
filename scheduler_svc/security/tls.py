"""TLS for one port: its certificate is read anew when its files change, without a restart.

gRPC asks for the certificate before each handshake. Open connections keep the one they began with.
Files that do not fit together, as halfway through a renewal, change nothing. Knows no service.
"""

import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import grpc

from scheduler_svc.config import InvalidConfig
from scheduler_svc.security.watched import FilesUnreadable, Signature, signature_of

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files of one port; `flag` is what its flags begin with, such as --admin-tls."""

    flag: str
    certificate: str
    key: str
    client_ca: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that are set."""
        return tuple(path for path in (self.certificate, self.key, self.client_ca) if path)


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials | None:
    """Credentials that follow their files; None without files. Raises InvalidConfig at first."""
    if not files.certificate:
        return None
    certificates = CertificateFiles(files)
    return grpc.dynamic_ssl_server_credentials(
        certificates.load(),
        certificates.fetch,  # type: ignore[arg-type]  # None is documented, its type forgotten
        require_client_authentication=bool(files.client_ca),
    )


class CertificateFiles:
    """Reads the files when they change. Threads of gRPC's may ask at the same time."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._seen: Signature | None = None
        self._told = ""

    def load(self) -> grpc.ServerCertificateConfiguration:
        """The first reading. Raises InvalidConfig naming the flag and the file."""
        try:
            self._seen = signature_of(self._files.paths)
        except FilesUnreadable:
            self._seen = None  # reading says which flag names the file
        return _read(self._files)

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """What is new for the next handshake; None to go on as before. Raises nothing."""
        with self._lock:
            try:
                signature = signature_of(self._files.paths)
                if signature == self._seen:
                    return None
                read = _read(self._files)
                if signature != signature_of(self._files.paths):
                    return None  # being written: the next handshake looks again
            except (InvalidConfig, FilesUnreadable) as error:
                self._tell(str(error))
                return None
            self._seen, self._told = signature, ""
            _LOG.info("%s-cert %s: read anew", self._files.flag, self._files.certificate)
            return read

    def _tell(self, error: str) -> None:
        if error != self._told:
            self._told = error
            _LOG.error("the TLS certificate in use stays: %s", error)


def _read(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    certificate = _bytes(f"{files.flag}-cert", files.certificate)
    key = _bytes(f"{files.flag}-key", files.key)
    client_ca = _bytes(f"{files.flag}-client-ca", files.client_ca) if files.client_ca else None
    _check_pair(files)
    if client_ca is not None:
        _check_authority(files, client_ca)
    return grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca)


def _bytes(flag: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidConfig(f"{flag} {path}: {error.strerror}") from error


def _check_pair(files: TlsFiles) -> None:
    """A broken pair would be taken, and then every handshake fails."""
    names = f"{files.flag}-cert {files.certificate} with {files.flag}-key {files.key}"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            files.certificate, files.key, password=_no_password
        )
    except ssl.SSLError as error:
        # the library's own text tells little and differs between its versions
        reason = error.reason or "not PEM, or of a kind that is not supported"
        raise InvalidConfig(f"{names}: not a certificate and its key ({reason})") from error
    except (OSError, ValueError) as error:
        raise InvalidConfig(f"{names}: {error}") from error


def _no_password() -> NoReturn:
    raise ValueError("the key must not be encrypted with a password")


def _check_authority(files: TlsFiles, text: bytes) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=text.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        rule = "must hold certificates in PEM form"
        raise InvalidConfig(f"{files.flag}-client-ca {files.client_ca}: {rule}") from error
