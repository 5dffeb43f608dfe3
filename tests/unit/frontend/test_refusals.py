"""Refusals come before any header, each with its status and details."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.model import ServedModel
from tests.unit.frontend.frontend_service import Service, running_service
from tests.unit.frontend.stream_reader import Reader, generation, refusal_of

Code = grpc.StatusCode


@pytest.mark.parametrize(
    ("rejected", "code", "reason"),
    [
        (engine.REJECT_REASON_PROMPT_TOO_LONG, Code.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (engine.REJECT_REASON_QUEUE_FULL, Code.RESOURCE_EXHAUSTED, "QUEUE_FULL"),
        (engine.REJECT_REASON_TENANT_LIMIT, Code.RESOURCE_EXHAUSTED, "TENANT_LIMIT"),
        (engine.REJECT_REASON_DRAINING, Code.UNAVAILABLE, "DRAINING"),
        (engine.REJECT_REASON_NO_WORKERS, Code.UNAVAILABLE, "NO_WORKERS"),
        (engine.REJECT_REASON_DEADLINE, Code.DEADLINE_EXCEEDED, "DEADLINE"),
        (engine.REJECT_REASON_BODY_DIFFERS, Code.ALREADY_EXISTS, "BODY_DIFFERS"),
        (engine.REJECT_REASON_NOT_FOUND, Code.NOT_FOUND, "REQUEST_NOT_FOUND"),
        (engine.REJECT_REASON_INVALID, Code.INTERNAL, "GENERATION_FAILED"),
    ],
)
async def test_the_cores_refusals_have_one_status_each(
    service: Service, rejected: engine.RejectReason.ValueType, code: Code, reason: str
) -> None:
    reader = Reader(service.stub, generation(request_id="mine"))
    submit = await service.core.expect("submit")
    await service.core.reject(submit.number, rejected)
    refusal = await refusal_of(reader)
    assert (refusal.code, refusal.info.reason, refusal.info.domain) == (code, reason, "octavo")
    assert refusal.info.metadata["request_id"] == "mine"
    assert "because" in refusal.text
    assert "grpc-retry-pushback-ms" not in refusal.trailers
    assert not refusal.retry.HasField("retry_delay")
    assert dict(await reader.call.initial_metadata()) == {}
    await service.core.expect_nothing()


async def test_a_refusal_with_a_delay_says_when_to_come_back(service: Service) -> None:
    reader = Reader(service.stub, generation())
    submit = await service.core.expect("submit")
    await service.core.reject(submit.number, engine.REJECT_REASON_QUEUE_FULL, retry_after_ms=1500)
    refusal = await refusal_of(reader)
    assert refusal.trailers["grpc-retry-pushback-ms"] == "1500"
    assert refusal.retry.retry_delay.ToMilliseconds() == 1500


async def test_all_violations_come_at_once(service: Service) -> None:
    wanted = generation("", request_id="not an id", max_tokens=0, n=99, stop=[""])
    wanted.sampling.temperature = float("nan")
    refusal = await refusal_of(Reader(service.stub, wanted))
    assert refusal.code is Code.INVALID_ARGUMENT
    assert set(refusal.fields) == {
        "generation.request_id",
        "generation.sampling.temperature",
        "generation.sampling.n",
        "generation.stopping.max_tokens",
        "generation.stopping.stop[0]",
        "generation.prompt.text",
    }
    assert "generation.sampling.n: must be 1 to 16, got 99" in refusal.text
    await service.core.expect_nothing()


async def test_many_long_violations_still_fit_a_status(service: Service) -> None:
    wanted = generation(stop=["x" * 5000] * 1000)
    wanted.prompt.chat.messages.extend([api.ChatMessage(content="x")] * 1000)
    refusal = await refusal_of(Reader(service.stub, wanted))
    assert refusal.code is Code.INVALID_ARGUMENT
    assert refusal.fields[0] == "generation.stopping.stop[0]"


async def test_another_model_is_not_found(service: Service) -> None:
    wanted = generation()
    wanted.model = "gpt-of-others"
    refusal = await refusal_of(Reader(service.stub, wanted))
    assert (refusal.code, refusal.info.reason) == (Code.NOT_FOUND, "MODEL_NOT_FOUND")
    assert "'tiny'" in refusal.text


async def test_a_prompt_without_room_names_tokens_and_limit(service: Service) -> None:
    refusal = await refusal_of(Reader(service.stub, generation("x" * 200)))
    assert refusal.fields == ["generation.prompt"]
    assert "200 tokens" in refusal.bad_request.field_violations[0].description
    fits = Reader(service.stub, generation("x" * 199))
    assert len((await service.core.expect("submit")).prompt_tokens) == 4 * 199
    fits.call.cancel()


async def test_a_request_larger_than_the_limit_is_refused_and_the_service_lives_on(
    model: ServedModel, run_dir: Path
) -> None:
    async with running_service(model, run_dir, max_request_bytes=100_000) as service:
        refusal = await refusal_of(Reader(service.stub, generation("x" * 200_000)))
        assert refusal.code is Code.RESOURCE_EXHAUSTED
        reader = Reader(service.stub, generation("x"))
        await service.core.expect("submit")
        reader.call.cancel()


async def test_without_a_core_new_requests_wait_and_are_then_refused(
    model: ServedModel, run_dir: Path
) -> None:
    async with running_service(model, run_dir, with_core=False, core_restart_grace=0.5) as service:
        refusal = await refusal_of(Reader(service.stub, generation()))
    assert (refusal.code, refusal.info.reason) == (Code.UNAVAILABLE, "CORE_UNREACHABLE")
    assert int(refusal.trailers["grpc-retry-pushback-ms"]) > 0


async def test_a_request_that_waits_for_the_core_goes_out_when_it_comes(
    model: ServedModel, run_dir: Path
) -> None:
    async with running_service(model, run_dir, with_core=False) as service:
        reader = Reader(service.stub, generation())
        await service.until(lambda: list(service.services.ledger.unanswered()))
        await service.core.start()
        submit = await service.core.expect("submit")
        assert (submit.number, submit.was_accepted) == (1, False)
        await service.core.accept(submit)
        await service.core.deliver(submit.number, service.ids("ok"), end=engine.END_REASON_LENGTH)
        await reader.read_all()
    assert reader.texts == ["ok"]


async def test_a_flood_of_calls_is_refused_with_reasons(service: Service) -> None:
    """Calls that the loop is slow to take would be dropped by gRPC without a reason."""
    num_calls = 1500
    readers = [Reader(service.stub, generation(), timeout_s=60) for _ in range(num_calls)]

    async def refuse_all() -> None:
        for _ in range(num_calls):
            submit = await service.core.expect("submit")
            await service.core.reject(submit.number, engine.REJECT_REASON_QUEUE_FULL)

    refusals, _ = await asyncio.gather(
        asyncio.gather(*(refusal_of(reader) for reader in readers)), refuse_all()
    )
    assert {(one.code, one.info.reason) for one in refusals} == {
        (Code.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    }
