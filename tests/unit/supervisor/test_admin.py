"""AdminService over a real port, with a core that answers what a test says."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import grpc
import grpc.aio
import pytest
import zmq
import zmq.asyncio

from octavo.internal.v1 import control_pb2 as control
from octavo.v1 import admin_pb2 as admin
from octavo.v1 import admin_pb2_grpc
from scheduler_svc.admin.servicer import AdminServicer
from scheduler_svc.config import ServiceConfig
from scheduler_svc.control.hub import ControlHub
from scheduler_svc.metrics.exporter import SnapshotStore
from scheduler_svc.supervisor.state import ReplicaState

if TYPE_CHECKING:  # a name for type checkers only
    from octavo.v1.admin_pb2_grpc import AdminServiceAsyncStub

Answer = Callable[[control.ControlMessage], control.ChildMessage | None]


@asynccontextmanager
async def admin_port(answer: Answer | None) -> AsyncIterator[AdminServiceAsyncStub]:
    """The service; without an answer there is no core."""
    with tempfile.TemporaryDirectory(prefix="octavo-admin-") as folder:
        endpoint = f"ipc://{Path(folder)}/control.sock"
        hub = ControlHub(endpoint, clock=time.monotonic)
        hub.bind()
        servicer = AdminServicer(
            ServiceConfig(),
            state=ReplicaState(),
            store=SnapshotStore(),
            children=[],
            hub=hub,
            drain=lambda _: None,
        )
        server = grpc.aio.server()
        admin_pb2_grpc.add_AdminServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        tasks = [asyncio.create_task(_receive(hub))]
        context = zmq.asyncio.Context()
        if answer is not None:
            tasks.append(asyncio.create_task(_be_core(context, endpoint, answer)))
            async with asyncio.timeout(10):
                while hub.record("core") is None:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.01)
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield admin_pb2_grpc.AdminServiceStub(channel)
        finally:
            await server.stop(None)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            context.destroy(linger=0)
            hub.close()


async def _receive(hub: ControlHub) -> None:
    while True:
        await hub.receive()


async def _be_core(context: zmq.asyncio.Context, endpoint: str, answer: Answer) -> None:
    socket = context.socket(zmq.DEALER)
    socket.connect(endpoint)
    hello = control.ChildHello(role="core", name="core", pid=1, incarnation=1)
    await socket.send(control.ChildMessage(hello=hello).SerializeToString())
    while True:
        said = answer(control.ControlMessage.FromString(await socket.recv()))
        if said is not None:
            await socket.send(said.SerializeToString())


async def test_requests_are_listed_as_the_core_says() -> None:
    asked: list[admin.ListRequestsRequest] = []
    response = admin.ListRequestsResponse(
        requests=[admin.RequestState(request_id="one")], num_live_requests=4, next_after=9
    )

    def answer(order: control.ControlMessage) -> control.ChildMessage:
        asked.append(order.list_requests.request)
        listed = control.RequestList(call=order.list_requests.call, response=response)
        return control.ChildMessage(request_list=listed)

    async with admin_port(answer) as stub:
        request = admin.ListRequestsRequest(limit=1, after=3, tenant="a", include_blocks=True)
        assert await stub.ListRequests(request) == response
        assert asked == [request]
        assert await stub.ListRequests(admin.ListRequestsRequest()) == response


async def test_a_flush_says_what_was_forgotten() -> None:
    def answer(order: control.ControlMessage) -> control.ChildMessage:
        response = admin.FlushPrefixCacheResponse(num_blocks=12)
        call = order.flush_prefix_cache.call
        return control.ChildMessage(
            cache_flushed=control.CacheFlushed(call=call, response=response)
        )

    async with admin_port(answer) as stub:
        assert (await stub.FlushPrefixCache(admin.FlushPrefixCacheRequest())).num_blocks == 12


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (admin.ListRequestsRequest(limit=0), "limit"),
        (admin.ListRequestsRequest(limit=1001), "limit"),
        (admin.ListRequestsRequest(after=-1), "after"),
    ],
)
async def test_a_field_out_of_range_is_named(
    request_: admin.ListRequestsRequest, named: str
) -> None:
    async with admin_port(None) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListRequests(request_)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert cast("str", caught.value.details()).startswith(named)


async def test_without_a_core_it_is_unavailable() -> None:
    async with admin_port(None) as stub:
        with pytest.raises(grpc.aio.AioRpcError, match="core is not running") as caught:
            await stub.FlushPrefixCache(admin.FlushPrefixCacheRequest())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_core_that_does_not_answer_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scheduler_svc.admin.servicer._ANSWER_LIMIT_S", 0.2)
    async with admin_port(lambda _: None) as stub:
        with pytest.raises(grpc.aio.AioRpcError, match="did not answer") as caught:
            await stub.ListRequests(admin.ListRequestsRequest())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_late_answer_goes_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_svc.admin.servicer._ANSWER_LIMIT_S", 0.2)
    late: list[int] = []

    def answer(order: control.ControlMessage) -> control.ChildMessage | None:
        late.append(order.list_requests.call)
        if len(late) == 1:
            return None
        stale = control.RequestList(
            call=late[0], response=admin.ListRequestsResponse(num_live_requests=99)
        )
        return control.ChildMessage(request_list=stale)

    async with admin_port(answer) as stub:
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError, match="did not answer"):
                await stub.ListRequests(admin.ListRequestsRequest())
