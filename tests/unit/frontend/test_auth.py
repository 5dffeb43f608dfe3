"""API keys: who is let in, as whom, how many at once, and what happens when the file changes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from scheduler_svc.config import InvalidConfig
from scheduler_svc.frontend.errors import Unauthenticated
from scheduler_svc.frontend.model import ServedModel
from scheduler_svc.security.key_records import InvalidRecords, parse_records
from scheduler_svc.security.keys import KeyRing, key_ring
from scheduler_svc.seldom_log import SeldomLog
from tests.unit.frontend.frontend_service import Service, running_service
from tests.unit.frontend.scripted_core import WAIT_LIMIT_S
from tests.unit.frontend.stream_reader import Reader, Refusal, generation, refusal_of

ACME, OTHER = "octavo_acme-key", "octavo_other-key"


def record(key: str, tenant: str, **more: object) -> str:
    return json.dumps(
        {"tenant": tenant, "sha256": hashlib.sha256(key.encode()).hexdigest(), **more}
    )


def bearer(key: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {key}")]


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.jsonl"
    lines = [
        "# who may call",
        record(ACME, "acme", max_requests=2, priorities=[0, 8], weight=2),
        "",
    ]
    path.write_text("\n".join([*lines, record(OTHER, "other")]))
    return path


@pytest.fixture
async def guarded(model: ServedModel, run_dir: Path, keys_file: Path) -> AsyncIterator[Service]:
    async with running_service(model, run_dir, api_keys_file=str(keys_file)) as service:
        yield service


async def leave(service: Service, reader: Reader) -> None:
    """Returns once the service has seen that the client has gone."""
    reader.call.cancel()
    await service.core.expect("detach")


METHODS = api.DESCRIPTOR.services_by_name["InferenceService"].methods_by_name


async def refused(call: Any) -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call.read() if hasattr(call, "read") else call)
    return Refusal(caught.value)


@pytest.mark.parametrize("method", METHODS)
async def test_every_method_needs_a_known_key(guarded: Service, method: str) -> None:
    ask = getattr(guarded.stub, method)
    message = getattr(api, METHODS[method].input_type.name)()
    for metadata, reason in (
        ([], "API_KEY_MISSING"),
        ([("authorization", f"Basic {ACME}")], "API_KEY_MISSING"),
        (bearer("octavo_nobody"), "API_KEY_INVALID"),
        (bearer(""), "API_KEY_INVALID"),
        (bearer(ACME + "x"), "API_KEY_INVALID"),
    ):
        refusal = await refused(ask(message, metadata=metadata, timeout=WAIT_LIMIT_S))
        assert refusal.code is grpc.StatusCode.UNAUTHENTICATED
        assert refusal.info.reason == reason
        assert "octavo_" not in refusal.text
    readings = {(r.name, *r.labels): r for r in guarded.services.snapshot().readings}
    assert readings["requests_rejected", "unauthenticated"].counter == 5


async def test_health_and_reflection_are_open(guarded: Service) -> None:
    health = health_pb2_grpc.HealthStub(guarded.channel)
    answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_LIMIT_S)
    assert answer.status in (health_pb2.HealthCheckResponse.SERVING, 2)
    reflection = reflection_pb2_grpc.ServerReflectionStub(guarded.channel)
    call = reflection.ServerReflectionInfo(timeout=WAIT_LIMIT_S)
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    assert (await call.read()).list_services_response.service
    call.cancel()


async def test_the_tenant_of_the_key_goes_to_the_core(guarded: Service) -> None:
    for key, tenant in ((ACME, "acme"), (OTHER, "other")):
        reader = Reader(guarded.stub, generation(request_id="same"), metadata=bearer(key))
        submit = await guarded.core.expect("submit")
        assert (submit.tenant, submit.request_id) == (tenant, "same")
        await guarded.core.accept(submit)
        await guarded.core.deliver(submit.number, guarded.ids("ok"), end=engine.END_REASON_LENGTH)
        await reader.read_all()
        assert reader.texts == ["ok"]
        await guarded.core.expect("finish")
        attached = Reader(guarded.stub, api.AttachRequest(request_id="same"), metadata=bearer(key))
        assert (await guarded.core.expect("attach")).tenant == tenant
        await leave(guarded, attached)
        cancelling = asyncio.ensure_future(
            guarded.stub.Cancel(api.CancelRequest(request_id="same"), metadata=bearer(key))
        )
        order = await guarded.core.expect("cancel")
        assert order.tenant == tenant
        answer = engine.CancelAnswer(call=order.call, is_known=True)
        await guarded.core.send(engine.CoreToFrontend(cancel_answer=answer))
        assert (await cancelling).outcome == api.CANCEL_OUTCOME_CANCELLED


async def test_without_a_file_everybody_is_the_default_tenant(service: Service) -> None:
    reader = Reader(service.stub, generation(), metadata=bearer("whatever"))
    assert (await service.core.expect("submit")).tenant == "default"
    await leave(service, reader)


async def test_a_priority_is_kept_within_the_keys_bounds(guarded: Service) -> None:
    for key, sent, warnings in (
        (ACME, 0, ["generation.scheduling.priority: 0 for this API key, not -3"]),
        (OTHER, -3, []),
    ):
        wanted = generation()
        wanted.scheduling.priority = -3
        reader = Reader(guarded.stub, wanted, metadata=bearer(key))
        submit = await guarded.core.expect("submit")
        assert submit.priority == sent
        await guarded.core.accept(submit)
        await guarded.core.deliver(submit.number, guarded.ids("a"))
        chunk = await reader.read_one()
        assert chunk is not None
        assert list(chunk.start.warnings) == warnings
        await leave(guarded, reader)


async def test_a_tenant_has_at_most_its_number_of_open_requests(guarded: Service) -> None:
    first, second = (Reader(guarded.stub, generation(), metadata=bearer(ACME)) for _ in range(2))
    submits = [await guarded.core.expect("submit") for _ in range(2)]
    limits = [(submit.tenant_weight, submit.tenant_max_requests) for submit in submits]
    assert limits == [(2.0, 2), (2.0, 2)], "the core keeps to them as well"
    refusal = await refusal_of(
        Reader(guarded.stub, generation(request_id="third"), metadata=bearer(ACME))
    )
    assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refusal.info.reason == "TENANT_LIMIT"
    assert refusal.info.metadata["request_id"] == "third"
    assert refusal.retry.retry_delay.seconds == 1
    assert refusal.trailers["grpc-retry-pushback-ms"] == "1000"
    # others are not concerned, nor is a stream that goes on
    other = Reader(guarded.stub, generation(), metadata=bearer(OTHER))
    assert (await guarded.core.expect("submit")).tenant == "other"
    attached = Reader(guarded.stub, api.AttachRequest(request_id="x"), metadata=bearer(ACME))
    assert (await guarded.core.expect("attach")).tenant == "acme"
    for reader in (other, attached, second):
        await leave(guarded, reader)
    again = Reader(guarded.stub, generation(), metadata=bearer(ACME))
    assert (await guarded.core.expect("submit")).tenant == "acme"
    for reader in (first, again):
        await leave(guarded, reader)
    assert {submit.tenant for submit in submits} == {"acme"}


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def tenant_of(ring: KeyRing, key: str) -> str | None:
    try:
        return ring.caller(bearer(key)).tenant
    except Unauthenticated:
        return None


def test_a_changed_file_is_followed_and_a_broken_one_is_not(
    keys_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    ring = KeyRing(flag="--api-keys-file", path=str(keys_file), clock=clock)
    ring.load()
    assert tenant_of(ring, ACME) == "acme"
    keys_file.write_text(record("octavo_new", "acme"))
    clock.now_s += 2
    assert (tenant_of(ring, "octavo_new"), tenant_of(ring, ACME)) == ("acme", None)
    with caplog.at_level(logging.ERROR):
        for broken in ("", "{", json.dumps({"tenant": "acme", "key": ACME})):
            keys_file.write_text(broken)
            for _ in range(3):
                clock.now_s += 2
                assert tenant_of(ring, "octavo_new") == "acme"
        keys_file.unlink()
        clock.now_s += 2
        assert tenant_of(ring, "octavo_new") == "acme"
    assert len(caplog.records) == 4
    assert f"--api-keys-file {keys_file}" in caplog.text
    assert ACME not in caplog.text
    keys_file.write_text(record(OTHER, "other"))
    clock.now_s += 2
    assert (tenant_of(ring, OTHER), tenant_of(ring, "octavo_new")) == ("other", None)


GOOD = "0" * 64


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("[]", "must be one JSON object"),
        ("[" * 10_000, "must be one JSON object"),
        ('{"sha256": "' + GOOD + '"}', "tenant is required"),
        ('{"tenant": "a"}', "sha256 is required"),
        ('{"tenant": "a b", "sha256": "' + GOOD + '"}', "tenant must be 1 to 64"),
        ('{"tenant": "a", "sha256": "octavo_secret"}', "sha256 must be 64 hexadecimal"),
        (record("k", "a", priorities=[8, 0]), "priorities must be"),
        (record("k", "a", priorities=[True, 8]), "priorities must be"),
        (record("k", "a", max_requests=-1), "max_requests must be"),
        (record("k", "a", wait=2), "1 of its fields are none of tenant, sha256"),
        (record("k", "b", weight=0), "weight must be a number from 0.01 to 100"),
        (record("k", "b", weight=101), "weight must be a number"),
        (record("k", "b", weight=True), "weight must be a number"),
        (record("k", "b", weight="2"), "weight must be a number"),
        (record("k", "b").replace("}", ', "weight": NaN}'), "weight must be a number"),
        (record("k", "a", weight=2), "weight must be the same in all records of a tenant"),
        (record("first", "b"), "sha256 is that of an earlier line"),
    ],
)
def test_a_broken_record_is_named_by_line_and_field(line: str, rule: str) -> None:
    with pytest.raises(InvalidRecords, match=r"line 3: ") as caught:
        parse_records(f"{record('first', 'a')}\n\n{line}\n")
    assert rule in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_flood_of_refusals_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    logger = logging.getLogger("scheduler_svc.supervisor")
    denials = SeldomLog(logger, "admin port: refused %d calls", clock=clock)
    for _ in range(1000):
        denials.note()
    clock.now_s += 61
    denials.note()
    assert [record.args for record in caplog.records] == [(1,), (1000,)]


def test_a_wrong_file_is_named_with_its_flag(tmp_path: Path) -> None:
    missing, binary = tmp_path / "missing", tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for path, text in ((missing, "No such file"), (binary, "UTF-8"), (tmp_path, "directory")):
        with pytest.raises(InvalidConfig, match=f"--admin-keys-file {path}: ") as caught:
            key_ring(flag="--admin-keys-file", path=str(path))
        assert text in str(caught.value)
    assert key_ring(flag="--admin-keys-file", path="") is None
