"""Embed and Score: what is asked of the core, what becomes of its answers, and of failures."""

from __future__ import annotations

import asyncio
import struct
from array import array
from typing import Any

import grpc
import grpc.aio
import pytest

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from tests.unit.frontend.frontend_service import Service
from tests.unit.frontend.stream_reader import Refusal
from tests.unit.frontend.test_logprobs import record, told


def embed(service: Service, *texts: str, timeout: float | None = None, **fields: Any) -> Any:
    request = api.EmbedRequest(prompts=[api.Prompt(text=text) for text in texts], **fields)
    return asyncio.ensure_future(service.stub.Embed(request, timeout=timeout))


def score(service: Service, text: str, *continuations: str, **fields: Any) -> Any:
    request = api.ScoreRequest(
        prompt=api.Prompt(text=text),
        continuations=[api.Continuation(text=one) for one in continuations],
        **fields,
    )
    return asyncio.ensure_future(service.stub.Score(request))


async def refused(call: Any) -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return Refusal(caught.value)


async def answer_vector(service: Service, submit: engine.Submit, *values: float) -> None:
    vector = struct.pack(f"<{len(values)}f", *values)
    await service.core.deliver(submit.number, [0], records=vector, end=engine.END_REASON_LENGTH)


async def answer_scores(service: Service, submit: engine.Submit) -> None:
    tokens = array("i", submit.prompt_tokens)[submit.prompt_records_from :]
    records = b"".join(record(one, num_top=0) for one in tokens)
    await service.core.deliver(
        submit.number,
        [5],
        prompt_records=[(submit.prompt_records_from, records)],
        end=engine.END_REASON_LENGTH,
    )


async def test_each_prompt_gets_a_vector_of_length_one(service: Service) -> None:
    core = service.core
    call = embed(service, "ab", "xyz", pooling=api.POOLING_MEAN)
    submits = [await core.expect("submit") for _ in range(2)]
    for submit in submits:
        assert (submit.max_tokens, submit.num_outputs) == (1, 1)
        assert submit.pooling == engine.REQUEST_POOLING_MEAN
        await core.accept(submit, max_tokens=1)
    await core.started(submits[1].number, num_cached_tokens=2)
    # in another order than asked
    await answer_vector(service, submits[1], 0.0, 5.0)
    await answer_vector(service, submits[0], 3.0, 4.0)
    response = await call
    assert [list(one.values) for one in response.embeddings] == [
        pytest.approx([0.6, 0.8]),
        [0.0, 1.0],
    ]
    assert [one.prompt_tokens for one in response.embeddings] == [2, 3]
    assert (response.usage.prompt_tokens, response.usage.cached_tokens) == (5, 2)
    for _ in submits:
        assert (await core.expect("finish")).num_tokens == 1


async def test_vectors_come_as_they_are_on_request(service: Service) -> None:
    call = embed(service, "ab", normalize=False)
    submit = await service.core.expect("submit")
    assert submit.pooling == engine.REQUEST_POOLING_LAST
    await service.core.accept(submit, max_tokens=1)
    await answer_vector(service, submit, 3.0, -4.0)
    assert list((await call).embeddings[0].values) == [3.0, -4.0]


async def test_continuations_are_scored_behind_a_shared_prefix(service: Service) -> None:
    core = service.core
    call = score(service, "abc", "de", "f", scheduling=api.SchedulingParams(priority=3))
    first = await core.expect("submit")
    assert array("i", first.prompt_tokens).tolist() == service.ids("abcde")
    assert (first.prompt_records_from, first.priority) == (3, 3)
    await core.accept(first, max_tokens=1)
    await answer_scores(service, first)
    await core.expect("finish")
    second = await core.expect("submit")
    assert array("i", second.prompt_tokens).tolist() == service.ids("abcf")
    await core.accept(second, max_tokens=1)
    await answer_scores(service, second)
    response = await call
    d, e, f = service.ids("def")
    assert list(response.scores[0].tokens) == [told(d, num_top=0), told(e, num_top=0)]
    assert response.scores[0].logprob == -float(d + e)
    assert not response.scores[0].is_greedy
    assert list(response.scores[1].tokens) == [told(f, num_top=0)]
    assert response.usage.prompt_tokens == 6


async def test_every_fault_is_named(service: Service) -> None:
    request = api.EmbedRequest(
        prompts=[api.Prompt(text="a"), api.Prompt(), api.Prompt(text="a" * 300)],
        pooling=9,  # type: ignore[arg-type] # of a newer caller
        scheduling=api.SchedulingParams(priority=99),
    )
    refusal = await refused(service.stub.Embed(request))
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert set(refusal.fields) == {"prompts[1]", "prompts[2]", "pooling", "scheduling.priority"}
    none = await refused(service.stub.Embed(api.EmbedRequest()))
    assert set(none.fields) == {"prompts"}
    wrong = api.ScoreRequest(
        prompt=api.Prompt(text="a"),
        continuations=[
            api.Continuation(),
            api.Continuation(text=""),
            api.Continuation(token_ids=api.TokenIds(ids=[1, 288])),
            api.Continuation(text="b" * 199),
            api.Continuation(text="b"),
        ],
    )
    refusal = await refused(service.stub.Score(wrong))
    assert set(refusal.fields) == {
        "continuations[0]",
        "continuations[1].text",
        "continuations[2].token_ids.ids[1]",
        "continuations[3].text",
    }
    nothing = await refused(service.stub.Score(api.ScoreRequest()))
    assert set(nothing.fields) == {"prompt", "continuations"}


async def test_a_restarted_core_is_asked_again(service: Service) -> None:
    core = service.core
    call = embed(service, "ab")
    submit = await core.expect("submit")
    await core.accept(submit, max_tokens=1)
    await core.restart()
    again = await core.expect("submit")
    assert again.was_accepted
    assert again.prompt_tokens == submit.prompt_tokens
    await core.accept(again, max_tokens=1)
    await answer_vector(service, again, 2.0)
    assert list((await call).embeddings[0].values) == [1.0]


async def test_one_refusal_ends_the_call_and_the_rest(service: Service) -> None:
    core = service.core
    call = embed(service, "ab", "cd")
    submits = [await core.expect("submit") for _ in range(2)]
    await core.accept(submits[0], max_tokens=1)
    await core.reject(submits[1].number, engine.REJECT_REASON_QUEUE_FULL, retry_after_ms=50)
    refusal = await refused(call)
    assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    detach = await core.expect("detach")
    assert (detach.number, detach.cancel) == (submits[0].number, True)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (engine.END_REASON_DEADLINE, grpc.StatusCode.DEADLINE_EXCEEDED),
        (engine.END_REASON_DRAINED, grpc.StatusCode.UNAVAILABLE),
        (engine.END_REASON_ERROR, grpc.StatusCode.INTERNAL),
        (engine.END_REASON_CANCELLED, grpc.StatusCode.INTERNAL),
    ],
)
async def test_an_end_without_an_answer_is_a_status(
    service: Service, reason: engine.EndReason.ValueType, code: grpc.StatusCode
) -> None:
    call = embed(service, "ab")
    submit = await service.core.expect("submit")
    await service.core.accept(submit, max_tokens=1)
    await service.core.deliver(submit.number, end=reason, message="because")
    assert (await refused(call)).code is code


async def test_a_client_that_leaves_ends_its_requests(service: Service) -> None:
    call = score(service, "ab", "c")
    submit = await service.core.expect("submit")
    await service.core.accept(submit, max_tokens=1)
    call.cancel()
    detach = await service.core.expect("detach")
    assert (detach.number, detach.cancel) == (submit.number, True)


async def test_the_core_knows_the_callers_deadline(service: Service) -> None:
    call = embed(service, "ab", timeout=20.0)
    submit = await service.core.expect("submit")
    assert 15_000 < submit.deadline_ms <= 20_000
    call.cancel()


async def test_the_models_facts_name_the_size_of_vectors(service: Service) -> None:
    info = await service.stub.GetModelInfo(api.GetModelInfoRequest())
    assert info.embedding_size == service.model.hidden_size
    assert info.max_top_logprobs == 20
