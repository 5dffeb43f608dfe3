"""How calls end when they do not end well: clients that leave, deadlines, slow readers, stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.model import ServedModel
from tests.fakes.byte_tokenizer import END_OF_TEXT_ID
from tests.unit.frontend.frontend_service import Service, running_service
from tests.unit.frontend.scripted_core import WAIT_LIMIT_S
from tests.unit.frontend.stream_reader import Reader, Refusal, generation, refusal_of


@contextmanager
def quiet_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing worse than a warning is logged, by anybody."""
    with caplog.at_level(logging.WARNING):
        yield
    worse = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert worse == []


async def begun(service: Service, wanted: api.Generation, *, timeout_s: float = 10.0) -> Reader:
    """A stream that has its first token."""
    reader = Reader(service.stub, wanted, timeout_s=timeout_s)
    submit = await service.core.expect("submit")
    await service.core.accept(submit)
    await service.core.deliver(submit.number, service.ids("a"))
    assert await reader.read_one() is not None
    return reader


async def test_a_client_that_leaves_detaches_at_once(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    with quiet_log(caplog):
        reader = await begun(service, generation())
        reader.call.cancel()
        detach = await service.core.expect("detach")
        await service.until(lambda: service.services.calls.num_open == 0)
    assert (detach.number, detach.cancel) == (1, False)


async def test_a_client_that_leaves_before_the_answer_detaches_too(service: Service) -> None:
    reader = Reader(service.stub, generation())
    submit = await service.core.expect("submit")
    reader.call.cancel()
    assert (await service.core.expect("detach")).number == submit.number
    await service.core.accept(submit)  # crossed it
    await service.core.expect_nothing()


async def test_a_unary_client_that_leaves_detaches(service: Service) -> None:
    call = service.stub.GenerateUnary(api.GenerateUnaryRequest(generation=generation()))
    submit = await service.core.expect("submit")
    await service.core.accept(submit)
    await service.core.deliver(submit.number, service.ids("a"))
    call.cancel()
    assert (await service.core.expect("detach")).number == submit.number


async def test_the_callers_deadline_travels_and_cancels_whatever_is_kept(
    service: Service,
) -> None:
    reader = Reader(service.stub, generation(keep_for_s=60), timeout_s=0.6)
    submit = await service.core.expect("submit")
    assert 0 < submit.deadline_ms <= 600
    assert submit.keep_for_ms == 60_000
    await service.core.accept(submit)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await reader.read_all()
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    detach = await service.core.expect("detach")
    assert (detach.number, detach.cancel) == (submit.number, True)


async def test_a_kept_request_is_detached_not_cancelled(service: Service) -> None:
    reader = await begun(service, generation(keep_for_s=60))
    reader.call.cancel()
    assert not (await service.core.expect("detach")).cancel


@pytest.mark.parametrize(
    ("end", "code", "reason", "is_resumable"),
    [
        (engine.END_REASON_DRAINED, grpc.StatusCode.UNAVAILABLE, "DRAINED", "true"),
        (engine.END_REASON_DEADLINE, grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE", "false"),
        (engine.END_REASON_QUEUE_TIME, grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_TIME", "false"),
    ],
)
async def test_ends_that_are_no_finish_become_a_status(
    service: Service,
    end: engine.EndReason.ValueType,
    code: grpc.StatusCode,
    reason: str,
    is_resumable: str,
) -> None:
    reader = Reader(service.stub, generation(request_id="mine", stop=["abX"]))
    submit = await service.core.expect("submit")
    await service.core.accept(submit)
    ids = service.ids("a€ab")  # the last two may begin a stop string: they are not let go
    await service.core.deliver(submit.number, ids, end=end)
    refusal = await refusal_of(reader)
    finish = await service.core.expect("finish")
    assert (refusal.code, refusal.info.reason) == (code, reason)
    assert refusal.info.metadata["resumable"] == is_resumable
    assert refusal.info.metadata["request_id"] == "mine"
    assert reader.texts == ["a€"]
    assert (finish.reason, finish.num_tokens) == (end, len(ids))


async def test_a_task_cancelled_inside_is_not_left_without_a_status(service: Service) -> None:
    reader = await begun(service, generation())
    handlers = [
        task
        for task in asyncio.all_tasks()
        if "_handle_rpc" in repr(task) or "Generate" in repr(task)
    ]
    assert handlers
    for task in handlers:
        task.cancel()
    refusal = await refusal_of(reader)
    assert refusal.code is grpc.StatusCode.UNAVAILABLE
    assert refusal.info.reason == "INTERRUPTED"


async def test_a_slow_reader_gets_larger_chunks(service: Service) -> None:
    """Nothing is queued: what a client does not read waits as tokens."""
    core = service.core
    reader = Reader(service.stub, generation())
    submit = await core.expect("submit")
    await core.accept(submit)
    stretch = service.ids("x" * 4096)
    for index in range(60):  # far beyond what the connection takes unread
        await core.deliver(submit.number, stretch, first=index * len(stretch))
    total = 60 * len(stretch)
    await core.deliver(submit.number, first=total, end=engine.END_REASON_LENGTH)
    await service.until(lambda: _known_tokens(service) == total)
    await asyncio.sleep(0.2)
    await reader.read_all()
    assert reader.texts == ["x" * total]
    assert reader.finishes[0].num_tokens == total


def _known_tokens(service: Service) -> int:
    return sum(record.num_tokens for record in service.services.ledger.live())


async def test_a_reader_that_stays_away_is_let_go_resumable(
    model: ServedModel, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # shorter than the settings allow, so that the test is short
    async with running_service(model, run_dir, slow_reader_limit=0.3) as service:
        with quiet_log(caplog):
            wanted = generation(keep_for_s=30, skip_special_tokens=False)
            reader = await begun(service, wanted, timeout_s=30)
            stretch = [END_OF_TEXT_ID] * 4096  # much text for a token
            delivering = asyncio.create_task(_deliver_without_end(service, stretch))
            detach = await service.core.expect("detach")
            delivering.cancel()
            await asyncio.gather(delivering, return_exceptions=True)
            refusal = await refusal_of(reader)
            await service.until(lambda: service.services.calls.num_open == 0)
    assert not detach.cancel
    assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (refusal.info.reason, refusal.info.metadata["resumable"]) == ("SLOW_READER", "true")


async def _deliver_without_end(service: Service, stretch: list[int]) -> None:
    first = 1
    while True:
        await service.core.deliver(1, stretch, first=first)
        first += len(stretch)
        await asyncio.sleep(0.005)


async def test_cancel_by_name_answers_what_the_core_found(service: Service) -> None:
    outcomes = []
    for was_finished in (False, True):
        call = service.stub.Cancel(api.CancelRequest(request_id="x_1"), timeout=WAIT_LIMIT_S)
        order = await service.core.expect("cancel")
        assert order.request_id == "x_1"
        await service.core.send(
            engine.CoreToFrontend(
                cancel_answer=engine.CancelAnswer(
                    call=order.call, is_known=True, was_finished=was_finished
                )
            )
        )
        outcomes.append((await call).outcome)
    assert outcomes == [
        api.CANCEL_OUTCOME_CANCELLED,
        api.CANCEL_OUTCOME_ALREADY_FINISHED,
    ]


async def test_cancelling_an_unknown_name_is_not_found(service: Service) -> None:
    call = service.stub.Cancel(api.CancelRequest(request_id="nobody"), timeout=WAIT_LIMIT_S)
    order = await service.core.expect("cancel")
    answer = engine.CancelAnswer(call=order.call, is_known=False)
    await service.core.send(engine.CoreToFrontend(cancel_answer=answer))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    refusal = Refusal(caught.value)
    assert refusal.code is grpc.StatusCode.NOT_FOUND
    assert refusal.info.metadata["request_id"] == "nobody"


async def test_stopping_ends_streams_resumable_and_tells_the_core_nothing(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """Their requests become orphans, for another frontend to take."""
    with quiet_log(caplog):
        reader = await begun(service, generation())
        await service.services.stop()
        refusal = await refusal_of(reader)
        await service.core.expect_nothing()
    assert refusal.code is grpc.StatusCode.UNAVAILABLE
    assert (refusal.info.reason, refusal.info.metadata["resumable"]) == ("STOPPING", "true")
    assert service.services.calls.num_open == 0
