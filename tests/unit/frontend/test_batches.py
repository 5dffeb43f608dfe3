"""Many generations in one call: each a request of its own, answered when it has ended."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend import batches
from scheduler_svc.frontend.model import ServedModel
from tests.unit.frontend.frontend_service import Service, running_service
from tests.unit.frontend.scripted_core import WAIT_LIMIT_S
from tests.unit.frontend.stream_reader import Refusal, generation


def send(service: Service, wanted: list[api.Generation], *, timeout_s: float = WAIT_LIMIT_S) -> Any:
    """Calls, and reads the first answer in the background: a call begins with its first use."""
    call = service.stub.GenerateBatch(
        api.GenerateBatchRequest(generations=wanted), timeout=timeout_s
    )
    return call, asyncio.ensure_future(call.read())


async def answer(service: Service, submit: engine.Submit, text: str) -> None:
    await service.core.deliver(submit.number, service.ids(text), end=engine.END_REASON_LENGTH)
    assert (await service.core.expect("finish")).number == submit.number


async def accepted(service: Service) -> engine.Submit:
    submit: engine.Submit = await service.core.expect("submit")
    await service.core.accept(submit)
    return submit


async def test_answers_come_in_the_order_of_their_ends(service: Service) -> None:
    call, first = send(service, [generation("a"), generation("b", n=2), generation("c")])
    submits = {}
    for _ in range(3):
        submit = await accepted(service)
        submits[bytes(submit.prompt_tokens[:1])] = submit
    a, b, c = (submits[bytes(service.ids(letter))] for letter in "abc")
    await answer(service, c, "see")
    got = await first
    assert (got.index, got.answer.outputs[0].text) == (2, "see")
    assert got.answer.request_id == c.request_id
    assert got.answer.outputs[0].finish.reason == api.FINISH_REASON_LENGTH
    for output in range(2):
        await service.core.deliver(
            b.number, service.ids(f"b{output}"), output=output, end=engine.END_REASON_LENGTH
        )
        await service.core.expect("finish")
    await answer(service, a, "eh")
    rest = [await call.read(), await call.read()]
    assert [one.index for one in rest] == [1, 0]
    assert [output.text for output in rest[0].answer.outputs] == ["b0", "b1"]
    assert await call.read() is grpc.aio.EOF
    assert (await call.code()) is grpc.StatusCode.OK


async def test_what_is_wrong_with_one_entry_is_its_own_answer(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "NO_ROOM_LIMIT_S", 0.0)
    broken = generation("x", request_id="bad id")
    broken.sampling.top_p = 2
    call, first = send(
        service,
        [
            broken,
            api.Generation(model="other", prompt=api.Prompt(text="x")),
            generation("fine", request_id="mine"),
            generation("fine", request_id="mine"),
            generation("refused"),
        ],
    )
    refused, served = await service.core.expect("submit"), await service.core.expect("submit")
    if refused.request_id == "mine":
        refused, served = served, refused
    await service.core.reject(refused.number, engine.REJECT_REASON_QUEUE_FULL, retry_after_ms=10)
    await service.core.accept(served)
    await answer(service, served, "ok")
    got = [await first]
    while (one := await call.read()) is not grpc.aio.EOF:
        got.append(one)
    by_index = {one.index: one for one in got}
    assert sorted(by_index) == [0, 1, 2, 3, 4]
    faults = by_index[0].error
    assert (faults.code, faults.reason) == (3, "INVALID_REQUEST")
    assert {fault.field for fault in faults.faults} == {"request_id", "sampling.top_p"}
    assert all(fault.rule for fault in faults.faults)
    assert by_index[1].error.reason == "MODEL_NOT_FOUND"
    assert by_index[2].answer.outputs[0].text == "ok"
    twice = by_index[3].error
    assert [(one.field, one.rule) for one in twice.faults] == [
        ("request_id", "is the id of entry 2 of this batch")
    ]
    full = by_index[4].error
    assert (full.code, full.reason) == (8, "QUEUE_FULL")
    assert full.request_id == refused.request_id


async def test_an_entry_waits_for_room(service: Service) -> None:
    _, first = send(service, [generation("a", request_id="mine")])
    refused = await service.core.expect("submit")
    await service.core.reject(refused.number, engine.REJECT_REASON_QUEUE_FULL, retry_after_ms=10)
    again = await accepted(service)
    assert again.request_id == "mine"
    await answer(service, again, "x")
    assert (await first).answer.outputs[0].text == "x"


async def test_every_entry_is_logged_with_its_end(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    call, first = send(
        service, [generation("a", request_id="done"), generation("b", request_id="left")]
    )
    one, two = await accepted(service), await accepted(service)
    await answer(service, one if one.request_id == "done" else two, "x")
    assert (await first).HasField("answer")
    call.cancel()
    await service.until(lambda: service.services.calls.num_open == 0)
    lines = {
        line.__dict__.get("request_id"): line.__dict__
        for line in caplog.records
        if line.message == "call ended"
    }
    assert lines["done"]["code"] == "OK"
    assert lines["done"]["completion_tokens"] == 1
    assert (lines["left"]["code"], lines["left"]["reason"]) == ("CANCELLED", "BATCH_LEFT")


@pytest.mark.parametrize("count", [0, 1025])
async def test_a_batch_of_no_size_is_refused_as_a_whole(service: Service, count: int) -> None:
    _, first = send(service, [generation("x")] * count)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await first
    refusal = Refusal(raised.value)
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.fields == ["generations"]
    await service.core.expect_nothing()


async def test_a_client_that_leaves_cancels_all_that_run(service: Service) -> None:
    call, first = send(service, [generation("a"), generation("b"), generation("c", keep_for_s=9)])
    numbers = {(await accepted(service)).number for _ in range(3)}
    first.cancel()
    call.cancel()
    left = [await service.core.expect("detach") for _ in range(3)]
    assert {one.number for one in left} == numbers
    await service.until(lambda: service.services.calls.num_open == 0)


async def test_a_deadline_ends_all_that_run(service: Service) -> None:
    _, first = send(service, [generation("a"), generation("b")], timeout_s=1)
    submits = [await accepted(service) for _ in range(2)]
    assert all(0 < submit.deadline_ms <= 1000 for submit in submits)
    left = [await service.core.expect("detach") for _ in range(2)]
    assert all(one.cancel for one in left)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await first
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_only_so_many_run_at_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_AT_ONCE", 2)
    call, first = send(service, [generation(letter) for letter in "abcd"])
    one, two = await accepted(service), await accepted(service)
    await service.core.expect_nothing()
    await answer(service, two, "x")
    three = await accepted(service)
    await service.core.expect_nothing()
    for submit in (one, three, await accepted_after(service, one, "x")):
        if submit is not one:
            await answer(service, submit, "x")
    got = [await first]
    while (entry := await call.read()) is not grpc.aio.EOF:
        got.append(entry)
    assert sorted(entry.index for entry in got) == [0, 1, 2, 3]


async def accepted_after(service: Service, submit: engine.Submit, text: str) -> engine.Submit:
    """The request that follows when another ends."""
    await answer(service, submit, text)
    return await accepted(service)


async def test_answers_that_nobody_reads_hold_up_the_rest(
    model: ServedModel, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flow control: a client that stops reading has a bounded number of entries begun for it."""
    monkeypatch.setattr(batches, "MAX_AT_ONCE", 2)
    async with running_service(model, run_dir, slow_reader_limit=1.0) as service:
        # More than a connection takes unread.
        call, first = send(service, [generation("x")] * 100)
        serving = asyncio.create_task(serve_all(service, "y" * 50_000))
        await service.until(lambda: service.services.calls.num_open == 1)
        await service.until(lambda: service.services.calls.num_open == 0)
        num_begun = await serving
        assert 2 <= num_begun < 100
        assert (await first).HasField("answer")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await drain(call)
        assert Refusal(raised.value).info.reason == "SLOW_READER"


async def drain(call: Any) -> None:
    """Reads to the end."""
    while await call.read() is not grpc.aio.EOF:
        pass


async def serve_all(service: Service, text: str) -> int:
    """Serves requests until none has come for a while; returns how many did."""
    num_served = 0
    while True:
        try:
            async with asyncio.timeout(2):
                message = await service.core.expect_any()
        except TimeoutError:
            return num_served
        if isinstance(message, engine.Submit):
            num_served += 1
            await service.core.accept(message)
            await service.core.deliver(
                message.number, service.ids(text), end=engine.END_REASON_LENGTH
            )
