"""TLS on the inference port: with client certificates, and with files that change underneath."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from octavo.v1 import inference_pb2 as api
from octavo.v1.inference_pb2_grpc import InferenceServiceStub
from scheduler_svc.config import InvalidConfig
from scheduler_svc.frontend.model import ServedModel
from scheduler_svc.security.tls import CertificateFiles, TlsFiles, server_credentials
from tests.fakes.certificates import Pair, make_authority, make_certificate
from tests.unit.frontend.frontend_service import MODEL, Service, running_service
from tests.unit.frontend.scripted_core import WAIT_LIMIT_S


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture
def server(tmp_path: Path, authority: Pair) -> Pair:
    return make_certificate(tmp_path, "server", signed_by=authority)


@pytest.fixture
def files(server: Pair) -> TlsFiles:
    return TlsFiles(flag="--tls", certificate=str(server.certificate), key=str(server.key))


@contextlib.asynccontextmanager
async def secured(
    model: ServedModel, run_dir: Path, server: Pair, tls_client_ca: str = ""
) -> AsyncIterator[Service]:
    certificate, key = str(server.certificate), str(server.key)
    async with running_service(
        model, run_dir, tls_cert=certificate, tls_key=key, tls_client_ca=tls_client_ca
    ) as service:
        yield service


async def served_model(service: Service, authority: Pair, client: Pair | None = None) -> str:
    """Asks over a connection of its own."""
    credentials = grpc.ssl_channel_credentials(
        authority.certificate.read_bytes(),
        client.key.read_bytes() if client else None,
        client.certificate.read_bytes() if client else None,
    )
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(service.address, credentials, options=options) as channel:
        stub = InferenceServiceStub(channel)
        answer = await stub.GetModelInfo(api.GetModelInfoRequest(), timeout=WAIT_LIMIT_S)
        return str(answer.model)


async def test_clients_that_trust_the_certificate_are_served(
    model: ServedModel, run_dir: Path, server: Pair, authority: Pair, tmp_path: Path
) -> None:
    stranger = make_authority(tmp_path, "stranger")
    async with secured(model, run_dir, server) as service:
        assert await served_model(service, authority) == MODEL
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served_model(service, stranger)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError) as caught:  # plain text
            await service.stub.GetModelInfo(api.GetModelInfoRequest(), timeout=WAIT_LIMIT_S)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_with_an_authority_only_its_clients_are_served(
    model: ServedModel, run_dir: Path, server: Pair, authority: Pair, tmp_path: Path
) -> None:
    known = make_certificate(tmp_path, "client", signed_by=authority)
    stranger = make_authority(tmp_path, "stranger")
    unknown = make_certificate(tmp_path, "unknown", signed_by=stranger)
    async with secured(model, run_dir, server, tls_client_ca=str(authority.certificate)) as service:
        assert await served_model(service, authority, known) == MODEL
        for client in (None, unknown):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await served_model(service, authority, client)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_new_certificate_serves_new_connections_without_a_restart(
    model: ServedModel, run_dir: Path, server: Pair, authority: Pair, tmp_path: Path
) -> None:
    successor = make_authority(tmp_path, "successor")
    renewed = make_certificate(tmp_path, "renewed", signed_by=successor)
    async with secured(model, run_dir, server) as service:
        assert await served_model(service, authority) == MODEL
        renewed.certificate.replace(server.certificate)
        # halfway through: the new certificate does not fit the old key
        assert await served_model(service, authority) == MODEL
        renewed.key.replace(server.key)
        assert await served_model(service, successor) == MODEL


async def test_new_authorities_decide_about_new_connections(
    model: ServedModel, run_dir: Path, server: Pair, authority: Pair, tmp_path: Path
) -> None:
    successor = make_authority(tmp_path, "successor")
    former = make_certificate(tmp_path, "former", signed_by=authority)
    newcomer = make_certificate(tmp_path, "newcomer", signed_by=successor)
    trusted = tmp_path / "trusted.pem"
    shutil.copy(authority.certificate, trusted)
    async with secured(model, run_dir, server, tls_client_ca=str(trusted)) as service:
        assert await served_model(service, authority, former) == MODEL
        successor.certificate.replace(trusted)
        assert await served_model(service, authority, newcomer) == MODEL
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served_model(service, authority, former)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        trusted.write_text("no authority")  # changes nothing
        assert await served_model(service, authority, newcomer) == MODEL


def test_a_failing_reload_keeps_what_is_there_and_is_told_once(
    files: TlsFiles, server: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = CertificateFiles(files)
    certificates.load()
    assert certificates.fetch() is None
    kept = shutil.copy(server.certificate, tmp_path / "kept")
    server.certificate.write_text("no certificate")
    with caplog.at_level(logging.ERROR):
        assert [certificates.fetch() for _ in range(3)] == [None] * 3
        assert len(caplog.records) == 1
        assert f"--tls-cert {server.certificate}" in caplog.text
        server.certificate.unlink()
        assert certificates.fetch() is None
        assert len(caplog.records) == 2
    shutil.copy(kept, server.certificate)
    assert certificates.fetch() is not None
    assert certificates.fetch() is None


def test_a_wrong_file_is_named_with_its_flag(
    files: TlsFiles, server: Pair, authority: Pair, tmp_path: Path
) -> None:
    def refused(certificate: Path, key: Path, client_ca: Path | str = "") -> str:
        chosen = TlsFiles(
            flag="--admin-tls", certificate=str(certificate), key=str(key), client_ca=str(client_ca)
        )
        with pytest.raises(InvalidConfig) as caught:
            server_credentials(chosen)
        return str(caught.value)

    missing, empty = tmp_path / "missing.pem", tmp_path / "empty.pem"
    empty.touch()
    assert refused(missing, server.key) == f"--admin-tls-cert {missing}: No such file or directory"
    assert f"--admin-tls-key {missing}" in refused(server.certificate, missing)
    assert "not a certificate and its key" in refused(server.certificate, authority.key)
    assert f"--admin-tls-client-ca {empty}" in refused(server.certificate, server.key, empty)
    assert "PRIVATE" not in refused(server.key, server.key)
    assert server_credentials(TlsFiles(flag="--tls", certificate="", key="")) is None
    assert server_credentials(files) is not None
