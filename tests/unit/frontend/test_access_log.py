"""One line for each call at its end; never a word of what was asked or answered."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc.aio
import pytest

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from scheduler_svc.log import JsonFormatter, TextFormatter
from tests.unit.frontend.frontend_service import Service
from tests.unit.frontend.scripted_core import WAIT_LIMIT_S, output
from tests.unit.frontend.stream_reader import Reader, generation, refusal_of

SECRET_PROMPT, SECRET_ANSWER = "Heliotrope", "Xylophone"
ACCESS = "scheduler_svc.frontend.access_log"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Everything anybody logs, at every level."""
    caplog.set_level(logging.DEBUG)
    return caplog


def lines(log: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The fields of all access lines, in order."""
    return [vars(record) for record in log.records if record.name == ACCESS]


async def settled(service: Service) -> None:
    await service.until(lambda: service.services.calls.num_open == 0)


async def finished(service: Service, wanted: api.Generation, text: str) -> None:
    """A request that runs to its end."""
    reader = Reader(service.stub, wanted)
    submit = await service.core.expect("submit")
    await service.core.accept(submit)
    await service.core.started(submit.number, num_cached_tokens=4)
    await service.core.deliver(submit.number, service.ids(text), end=engine.END_REASON_LENGTH)
    await reader.read_all()
    await service.core.expect("finish")
    await settled(service)


async def test_a_request_is_one_line_with_its_counts_and_times(
    service: Service, log: pytest.LogCaptureFixture
) -> None:
    await finished(service, generation("hello", request_id="mine"), "answer")
    [line] = lines(log)
    assert (line["request_id"], line["tenant"], line["method"]) == ("mine", "default", "Generate")
    assert (line["prompt_tokens"], line["cached_tokens"], line["completion_tokens"]) == (5, 4, 6)
    assert (line["finish_reasons"], line["code"], line["num_continued"]) == ("length", "OK", 0)
    assert 0 < line["ttft_ms"] <= line["total_ms"] < 1000 * WAIT_LIMIT_S
    assert "reason" not in line


async def test_lines_read_as_text_and_as_json(
    service: Service, log: pytest.LogCaptureFixture
) -> None:
    await finished(service, generation(request_id="mine"), "answer")
    [record] = [record for record in log.records if record.name == ACCESS]
    assert "request_id=mine tenant=default prompt_tokens=2" in TextFormatter("f").format(record)
    assert '"request_id": "mine", "tenant": "default"' in JsonFormatter("f").format(record)


async def test_a_client_that_leaves_is_told_apart_from_a_deadline(
    service: Service, log: pytest.LogCaptureFixture
) -> None:
    for timeout_s in (WAIT_LIMIT_S, 0.4):
        reader = Reader(service.stub, generation(), timeout_s=timeout_s)
        submit = await service.core.expect("submit")
        await service.core.accept(submit)
        await service.core.deliver(submit.number, service.ids("abc"))
        assert await reader.read_one() is not None
        if timeout_s == WAIT_LIMIT_S:
            reader.call.cancel()
        else:
            with pytest.raises(grpc.aio.AioRpcError):
                await reader.read_all()
        await service.core.expect("detach")
        await settled(service)
    ends = [(line["code"], line["reason"], line["completion_tokens"]) for line in lines(log)]
    assert ends == [("CANCELLED", "CLIENT_LEFT", 3), ("DEADLINE_EXCEEDED", "DEADLINE", 3)]


async def test_a_task_cancelled_inside_is_logged_as_the_client_saw_it(
    service: Service, log: pytest.LogCaptureFixture
) -> None:
    reader = Reader(service.stub, generation())
    await service.core.accept(await service.core.expect("submit"))
    await service.until(lambda: any(service.services.ledger.live()))
    for task in asyncio.all_tasks():
        if "_handle_rpc" in repr(task) or "Generate" in repr(task):
            task.cancel()
    assert (await refusal_of(reader)).info.reason == "INTERRUPTED"
    await settled(service)
    [line] = lines(log)
    assert (line["code"], line["reason"]) == ("UNAVAILABLE", "INTERRUPTED")


async def test_what_is_refused_is_a_line_without_counts(
    service: Service, log: pytest.LogCaptureFixture
) -> None:
    await refusal_of(Reader(service.stub, generation(request_id="!" * 5000)))
    await settled(service)
    [line] = lines(log)
    assert (line["code"], line["reason"]) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert line["request_id"] == "!" * 128
    assert "prompt_tokens" not in line


async def test_streams_that_go_on_say_so(service: Service, log: pytest.LogCaptureFixture) -> None:
    """Once for a new core in mid-stream, once more for the call that takes it over."""
    core, ids = service.core, service.ids("abcdef")
    reader = Reader(service.stub, generation(request_id="mine", seed=1), timeout_s=30)
    submit = await core.expect("submit")
    await core.accept(submit)
    await core.deliver(submit.number, ids[:2])
    await core.restart()
    again = await core.expect("submit")
    await core.accept(again)
    await core.deliver(again.number, ids[2:], first=2, end=engine.END_REASON_LENGTH)
    await reader.read_all()
    await core.expect("finish")

    attach = Reader(service.stub, api.AttachRequest(request_id="mine"))
    number = (await core.expect("attach")).number
    await core.attached(number, submit, [output(ids, end=engine.END_REASON_LENGTH)])
    await attach.read_all()
    await settled(service)
    first, second = lines(log)
    assert (first["method"], first["num_continued"]) == ("Generate", 1)
    assert (second["method"], second["num_continued"]) == ("Attach", 1)
    assert "ttft_ms" not in second


async def test_no_text_of_a_client_or_a_model_is_ever_logged(
    service: Service, log: pytest.LogCaptureFixture
) -> None:
    """At any level, by anybody: finished, refused, left, failed, tokenised."""
    await finished(service, generation(SECRET_PROMPT, stop=[SECRET_ANSWER]), SECRET_ANSWER)
    await refusal_of(Reader(service.stub, generation(SECRET_PROMPT, max_tokens=-1)))
    await service.stub.Tokenize(api.TokenizeRequest(prompt=api.Prompt(text=SECRET_PROMPT)))
    for end in (None, engine.END_REASON_ERROR, engine.END_REASON_DRAINED):
        reader = Reader(service.stub, generation(SECRET_PROMPT))
        submit = await service.core.expect("submit")
        await service.core.accept(submit)
        await service.core.deliver(submit.number, service.ids(SECRET_ANSWER), end=end)
        if end is None:
            assert await reader.read_one() is not None
            reader.call.cancel()
        else:
            await refusal_of(reader)
            await service.core.expect("finish")
        await service.core.expect("detach")
        await settled(service)
    assert len(lines(log)) == 6
    formatters = (TextFormatter("f"), JsonFormatter("f"))
    logged = "\n".join(form.format(record) for record in log.records for form in formatters)
    assert SECRET_PROMPT not in logged
    assert SECRET_ANSWER not in logged
