"""Estimate: what is asked of the core, and what its answer becomes."""

from __future__ import annotations

import asyncio
from array import array

import grpc
import grpc.aio
import pytest

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from tests.unit.frontend.frontend_service import Service
from tests.unit.frontend.stream_reader import Refusal


def ask(service: Service, text: str = "hello", **fields: object) -> asyncio.Task[object]:
    scheduling = api.SchedulingParams(**fields)  # type: ignore[arg-type]  # a test's own fields
    request = api.EstimateRequest(prompt=api.Prompt(text=text), scheduling=scheduling)

    async def call() -> object:
        return await service.stub.Estimate(request)

    return asyncio.create_task(call())


async def answer(service: Service, call: int, **fields: object) -> None:
    said = engine.EstimateAnswer(call=call, **fields)  # type: ignore[arg-type]  # likewise
    await service.core.send(engine.CoreToFrontend(estimate_answer=said))


async def test_the_core_is_asked_with_ids_and_its_answer_is_passed_on(service: Service) -> None:
    asking = ask(service, priority=-3, skip_cache_read=True)
    question = await service.core.expect("estimate")
    assert array("i", question.prompt_tokens).tolist() == service.ids("hello")
    assert (question.priority, question.skip_cache_read) == (-3, True)
    await answer(
        service,
        question.call,
        num_cached_tokens=2,
        num_requests_ahead=7,
        num_tokens_ahead=900,
        first_token_us=1_500_000,
    )
    assert await asking == api.EstimateResponse(
        prompt_tokens=5,
        cached_tokens=2,
        num_requests_ahead=7,
        num_tokens_ahead=900,
        predicted_ttft_s=1.5,
    )


async def test_without_measurements_nothing_is_predicted(service: Service) -> None:
    asking = ask(service)
    question = await service.core.expect("estimate")
    await answer(service, question.call)
    response = await asking
    assert isinstance(response, api.EstimateResponse)
    assert not response.HasField("predicted_ttft_s")


async def test_answers_find_their_questions(service: Service) -> None:
    first, second = ask(service, "a"), ask(service, "bb")
    questions = [await service.core.expect("estimate") for _ in range(2)]
    for question in reversed(questions):
        await answer(service, question.call, num_requests_ahead=len(question.prompt_tokens))
    answers = [await first, await second]
    assert [(one.prompt_tokens, one.num_requests_ahead) for one in answers] == [(1, 4), (2, 8)]  # type: ignore[attr-defined]  # responses


async def test_a_new_core_is_asked_again(service: Service) -> None:
    asking = ask(service)
    await service.core.expect("estimate")
    await service.core.restart()
    question = await service.core.expect("estimate")
    await answer(service, question.call, num_cached_tokens=1)
    response = await asking
    assert isinstance(response, api.EstimateResponse)
    assert response.cached_tokens == 1


async def test_every_fault_is_named_at_once(service: Service) -> None:
    request = api.EstimateRequest(
        prompt=api.Prompt(token_ids=api.TokenIds(ids=[1] * 200)),
        scheduling=api.SchedulingParams(priority=9),
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.stub.Estimate(request)
    refusal = Refusal(caught.value)
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.fields == ["scheduling.priority", "prompt"]
    await service.core.expect_nothing(for_s=0.1)
