"""Which settings secure which port, and whether their files are right. Serves nothing."""

from scheduler_svc.config import ServiceConfig
from scheduler_svc.security.keys import key_ring
from scheduler_svc.security.tls import TlsFiles, server_credentials


def inference_tls(config: ServiceConfig) -> TlsFiles:
    """The inference port's files."""
    return TlsFiles(
        flag="--tls",
        certificate=config.tls_cert,
        key=config.tls_key,
        client_ca=config.tls_client_ca,
    )


def admin_tls(config: ServiceConfig) -> TlsFiles:
    """The admin port's files."""
    return TlsFiles(
        flag="--admin-tls",
        certificate=config.admin_tls_cert,
        key=config.admin_tls_key,
        client_ca=config.admin_tls_client_ca,
    )


def check_security_files(config: ServiceConfig) -> None:
    """Reads every file once, so that a wrong one is an error at the start. Raises InvalidConfig."""
    for files in (inference_tls(config), admin_tls(config)):
        server_credentials(files)
    key_ring(flag="--api-keys-file", path=config.api_keys_file)
    key_ring(flag="--admin-keys-file", path=config.admin_keys_file)
