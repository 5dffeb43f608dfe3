"""A replica with everything locked: who gets in, who sees what, and where no secret is found."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

import octavo
from octavo.v1 import admin_pb2, admin_pb2_grpc
from tests.e2e.replica import Replica, running_replica, start_replica, wait_until
from tests.fakes.certificates import Pair, make_authority, make_certificate
from tests.fakes.checkpoints import make_tiny_checkpoint

ACME, OTHER, OPERATOR = "octavo_acme-secret", "octavo_other-secret", "octavo_operator-secret"
REPLACED = "octavo_replaced-secret"
LIMIT_S = 30.0


def _record(key: str, tenant: str, **more: object) -> str:
    sha256 = hashlib.sha256(key.encode()).hexdigest()
    return json.dumps({"tenant": tenant, "sha256": sha256, **more}) + "\n"


@dataclass
class Secured:
    """A running replica and the files that secure it."""

    replica: Replica
    authority: Pair
    server: Pair
    client_pair: Pair
    keys: Path
    folder: Path

    def client(self, key: str | None, *, trusting: Pair | None = None) -> octavo.Client:
        """A client that shows its certificate and a key."""
        credentials = grpc.ssl_channel_credentials(
            (trusting or self.authority).certificate.read_bytes(),
            self.client_pair.key.read_bytes(),
            self.client_pair.certificate.read_bytes(),
        )
        return octavo.Client(
            self.replica.target, credentials=credentials, api_key=key, timeout=LIMIT_S
        )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), family="qwen3")


@pytest.fixture(scope="module")
def secured(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secrets")
    authority = make_authority(folder, "authority")
    server = make_certificate(folder, "server", signed_by=authority)
    client = make_certificate(folder, "client", signed_by=authority)
    keys, admin_keys = folder / "keys.jsonl", folder / "admin.jsonl"
    keys.write_text(_record(ACME, "acme") + _record(OTHER, "other") + _record(REPLACED, "acme"))
    admin_keys.write_text(_record(OPERATOR, "operator"))
    flags = [
        *("--tls-cert", str(server.certificate), "--tls-key", str(server.key)),
        *("--tls-client-ca", str(authority.certificate), "--api-keys-file", str(keys)),
        *("--admin-tls-cert", str(server.certificate), "--admin-tls-key", str(server.key)),
        *("--admin-keys-file", str(admin_keys)),
        *("--log-level", "debug"),
    ]
    with running_replica(model, flags=flags, hash_worker=[]) as replica:
        yield Secured(replica, authority, server, client, keys, folder)


def test_a_key_over_tls_is_served_and_none_or_a_wrong_one_is_not(secured: Secured) -> None:
    with secured.client(ACME) as client:
        assert client.generate("hello", max_tokens=4).usage.completion_tokens == 4
    for key in (None, "octavo_wrong-secret", OPERATOR):
        with secured.client(key) as client, pytest.raises(octavo.Unauthenticated) as caught:
            client.generate("hello", max_tokens=4)
        assert key is None or key not in str(caught.value)


def test_without_tls_or_a_client_certificate_there_is_no_connection(secured: Secured) -> None:
    only_server = grpc.ssl_channel_credentials(secured.authority.certificate.read_bytes())
    for credentials in (None, only_server):
        with (
            octavo.Client(
                secured.replica.target, credentials=credentials, api_key=ACME, timeout=5.0
            ) as client,
            pytest.raises((octavo.Unavailable, octavo.DeadlineExceeded)),
        ):
            client.model_info()
    # strangers at the door do not fill the log
    assert "andshake failed" not in secured.replica.log()


def test_a_request_is_known_to_its_tenant_only(secured: Secured) -> None:
    with secured.client(ACME) as acme, secured.client(OTHER) as other:
        acme.stream("hello", max_tokens=4, request_id="private", keep_for_s=60.0).result()
        with pytest.raises(octavo.NotFound):
            other.attach("private").result()
        with pytest.raises(octavo.NotFound):
            other.cancel("private")
        # the name is free for others
        assert other.generate("hi", max_tokens=2, request_id="private").usage.completion_tokens == 2


def test_tenants_share_no_prefix(secured: Secured) -> None:
    prompt = list(range(4, 4 + 70))
    with secured.client(ACME) as acme, secured.client(OTHER) as other:
        acme.generate(prompt, max_tokens=1)
        assert acme.generate(prompt, max_tokens=1).usage.cached_tokens > 0
        assert other.generate(prompt, max_tokens=1).usage.cached_tokens == 0


def test_the_admin_port_takes_its_own_keys_only(secured: Secured) -> None:
    trusted = grpc.ssl_channel_credentials(secured.authority.certificate.read_bytes())
    with grpc.secure_channel(secured.replica.addresses.admin, trusted) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)

        def ask(*metadata: tuple[str, str]) -> admin_pb2.GetStateResponse:
            return stub.GetState(admin_pb2.GetStateRequest(), metadata=metadata, timeout=LIMIT_S)

        for metadata in ((), (("authorization", f"Bearer {ACME}"),)):
            with pytest.raises(grpc.RpcError) as caught:
                ask(*metadata)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert ask(("authorization", f"Bearer {OPERATOR}")).is_ready


def test_a_removed_key_and_a_renewed_certificate_need_no_restart(secured: Secured) -> None:
    def is_refused() -> bool:
        with secured.client(REPLACED) as client:
            try:
                client.model_info()
            except octavo.Unauthenticated:
                return True
        return False

    assert not is_refused()
    secured.keys.write_text(_record(ACME, "acme") + _record(OTHER, "other"))
    wait_until(is_refused, limit_s=LIMIT_S)
    successor = make_authority(secured.folder, "successor")
    renewed = make_certificate(secured.folder, "renewed", signed_by=successor)
    renewed.certificate.replace(secured.server.certificate)
    renewed.key.replace(secured.server.key)
    with secured.client(ACME, trusting=successor) as client:
        assert client.generate("hello", max_tokens=2).usage.completion_tokens == 2
    assert f"--tls-cert {secured.server.certificate}: read anew" in secured.replica.log()


def test_no_secret_is_found_outside_its_file(secured: Secured) -> None:
    """Comes last: everything above has left its traces."""
    private_key = secured.server.key.read_text().splitlines()[1]
    secrets = [ACME, OTHER, OPERATOR, REPLACED, "octavo_wrong-secret", private_key]
    secrets += [hashlib.sha256(key.encode()).hexdigest() for key in secrets[:4]]
    replica = secured.replica
    places = {
        "log": replica.log(),
        "metrics": replica.get("/metrics")[1],
        "process list": " ".join(word for one in replica.processes() for word in one.cmdline()),
        **{
            path.name: path.read_text(errors="replace")
            for path in replica.run_dir.rglob("*")
            if path.is_file()
        },
    }
    assert "unauthenticated" in places["metrics"]
    assert len(places) > 4
    for place, text in places.items():
        assert not [secret for secret in secrets if secret in text], place


def test_nobody_else_enters_the_run_folder(secured: Secured) -> None:
    run_dir = secured.replica.run_dir
    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE((run_dir / "config.json").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (lambda missing: ["--api-keys-file", missing], "--api-keys-file"),
        (lambda missing: ["--admin-keys-file", missing], "--admin-keys-file"),
        (lambda missing: ["--tls-cert", missing, "--tls-key", missing], "--tls-cert"),
    ],
)
def test_a_missing_file_ends_the_start_with_its_name(
    flags: Callable[[str], list[str]], named: str, model: Path, tmp_path: Path
) -> None:
    missing = str(tmp_path / "missing")
    replica = start_replica(model, tmp_path, flags=flags(missing))
    try:
        assert replica.supervisor.wait(timeout=LIMIT_S) == 2
        assert f"{named} {missing}: No such file or directory" in replica.log()
    finally:
        replica.end()
