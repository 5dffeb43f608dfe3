"""Health with a Watch that stays open, reflection in both versions, draining."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.frontend.model import ServedModel
from tests.unit.frontend.frontend_service import Service, running_service
from tests.unit.frontend.scripted_core import WAIT_LIMIT_S
from tests.unit.frontend.stream_reader import Reader, generation, refusal_of

SERVICE = "octavo.v1.InferenceService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


async def check(service: Service, name: str = "") -> Any:
    stub = health_pb2_grpc.HealthStub(service.channel)
    request = health_pb2.HealthCheckRequest(service=name)
    return (await stub.Check(request, timeout=WAIT_LIMIT_S)).status


class Watch:
    """One open Watch."""

    def __init__(self, service: Service, name: str = "") -> None:
        stub = health_pb2_grpc.HealthStub(service.channel)
        self.call = stub.Watch(health_pb2.HealthCheckRequest(service=name))

    async def next(self) -> Any:
        async with asyncio.timeout(WAIT_LIMIT_S):
            response = await self.call.read()
        return response if response is grpc.aio.EOF else response.status


async def serving(service: Service) -> None:
    watch = Watch(service)
    while await watch.next() != SERVING:
        pass
    watch.call.cancel()


@pytest.mark.parametrize("name", ["", SERVICE])
async def test_a_watch_follows_the_core(service: Service, name: str) -> None:
    await serving(service)
    watch = Watch(service, name)
    assert await watch.next() == SERVING
    service.core.status.is_accepting = False
    assert await watch.next() == NOT_SERVING
    assert await check(service, name) == NOT_SERVING
    service.core.status.is_accepting = True
    assert await watch.next() == SERVING
    service.core.status.is_progressing = False
    assert await watch.next() == NOT_SERVING
    watch.call.cancel()


async def test_silence_of_the_core_is_not_serving(service: Service) -> None:
    await serving(service)
    watch = Watch(service)
    assert await watch.next() == SERVING
    await service.core.stop()
    assert await watch.next() == NOT_SERVING
    await service.core.start()
    assert await watch.next() == SERVING
    watch.call.cancel()


async def test_an_unknown_service_is_watched_but_not_found(service: Service) -> None:
    watch = Watch(service, "nothing.Here")
    assert await watch.next() == SERVICE_UNKNOWN
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await check(service, "nothing.Here")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    watch.call.cancel()


async def test_fifty_watchers_are_told(service: Service) -> None:
    await serving(service)
    watches = [Watch(service) for _ in range(50)]
    assert await asyncio.gather(*(watch.next() for watch in watches)) == [SERVING] * 50
    service.services.drain()
    assert await asyncio.gather(*(watch.next() for watch in watches)) == [NOT_SERVING] * 50
    for watch in watches:
        watch.call.cancel()


async def test_a_watch_ends_when_the_service_stops(service: Service) -> None:
    await serving(service)
    watch = Watch(service)
    assert await watch.next() == SERVING
    await service.services.stop()
    assert await watch.next() == NOT_SERVING
    assert await watch.next() is grpc.aio.EOF


async def test_a_drain_refuses_new_requests_only_after_the_window(
    model: ServedModel, run_dir: Path
) -> None:
    async with running_service(model, run_dir, withdrawal_window=0.5) as service:
        await serving(service)
        running = Reader(service.stub, generation())
        submit = await service.core.expect("submit")
        await service.core.accept(submit)
        service.services.drain()
        assert await check(service) == NOT_SERVING
        late = Reader(service.stub, generation())
        second = await service.core.expect("submit")  # still let in
        await service.until(lambda: service.services.serving.refuses_new)
        refusal = await refusal_of(Reader(service.stub, generation()))
        assert refusal.code is grpc.StatusCode.UNAVAILABLE
        assert not service.services.snapshot().is_drained
        for number, reader in ((submit.number, running), (second.number, late)):
            if number == second.number:
                await service.core.accept(second)
            await service.core.deliver(number, service.ids("ok"), end=engine.END_REASON_LENGTH)
            await reader.read_all()
        assert (running.texts, late.texts) == (["ok"], ["ok"])
        await service.until(lambda: service.services.snapshot().is_drained)


async def test_a_snapshot_counts_what_clients_got(service: Service) -> None:
    await serving(service)
    reader = Reader(service.stub, generation())
    submit = await service.core.expect("submit")
    await service.core.accept(submit)
    await service.core.deliver(submit.number, service.ids("a"))
    await reader.read_one()
    await service.core.deliver(
        submit.number, service.ids("bc"), first=1, end=engine.END_REASON_LENGTH
    )
    await reader.read_all()
    await refusal_of(Reader(service.stub, generation("")))
    snapshot = service.services.snapshot()
    readings = {(r.name, *r.labels): r for r in snapshot.readings}
    assert snapshot.is_ready
    assert sum(readings["time_to_first_token_seconds",].histogram.counts) == 1
    assert sum(readings["inter_token_latency_seconds",].histogram.counts) == 1
    assert sum(readings["e2e_request_latency_seconds",].histogram.counts) == 1
    assert readings["request_success", "length"].counter == 1
    assert readings["requests_rejected", "invalid_request"].counter == 1


@pytest.mark.parametrize("package", ["grpc.reflection.v1", "grpc.reflection.v1alpha"])
async def test_reflection_describes_every_service(service: Service, package: str) -> None:
    call: Any = service.channel.stream_stream(
        f"/{package}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )(_questions(package), timeout=WAIT_LIMIT_S)
    answers = [answer async for answer in call]
    names = {one.name for one in answers[0].list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health", f"{package}.ServerReflection"} <= names
    assert _described(answers[1], "InferenceService")
    assert _described(answers[2], "ServerReflection") == package
    assert _described(answers[3], "InferenceService")
    assert answers[4].error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


async def _questions(package: str) -> AsyncIterator[Any]:
    ask = reflection_pb2.ServerReflectionRequest
    yield ask(list_services="")
    yield ask(file_containing_symbol=f"{SERVICE}.Generate")
    yield ask(file_containing_symbol=f"{package}.ServerReflection")
    yield ask(file_containing_symbol="octavo.v1.Generation.prompt")
    yield ask(file_containing_symbol="no.such.Thing")


def _described(answer: Any, service_name: str) -> str:
    """The package of the file that describes a service."""
    for serialized in answer.file_descriptor_response.file_descriptor_proto:
        file = descriptor_pb2.FileDescriptorProto.FromString(serialized)
        if service_name in [one.name for one in file.service]:
            return file.package
    return ""
