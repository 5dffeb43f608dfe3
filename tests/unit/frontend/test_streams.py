"""Streams of one frontend over real gRPC against a scripted core: text, ids, ends."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from tests.fakes.byte_tokenizer import END_ID
from tests.unit.frontend.frontend_service import MODEL, REPLICA, Service
from tests.unit.frontend.scripted_core import WAIT_LIMIT_S
from tests.unit.frontend.stream_reader import Reader, generation, refusal_of


async def test_text_streams_with_its_ids_and_ends_with_the_length(service: Service) -> None:
    core, text = service.core, "héllo wörld"
    ids = service.ids(text)
    reader = Reader(service.stub, generation("hi", seed=5, max_tokens=len(ids)))
    submit = await core.expect("submit")
    assert (submit.num_outputs, submit.max_tokens, submit.sampling.seed) == (1, len(ids), 5)
    assert not submit.was_accepted
    await core.accept(submit, max_tokens=len(ids))
    await core.started(submit.number, num_cached_tokens=1)
    for index, token in enumerate(ids[:-1]):
        await core.deliver(submit.number, [token], first=index)
    await core.deliver(submit.number, ids[-1:], first=len(ids) - 1, end=engine.END_REASON_LENGTH)
    await reader.read_all()
    finish = await core.expect("finish")

    assert reader.texts == [text]
    assert reader.ids == [ids]
    assert reader.finishes[0].reason == api.FINISH_REASON_LENGTH
    assert reader.finishes[0].num_tokens == len(ids)
    assert reader.headers["octavo-request-id"] == submit.request_id
    assert reader.headers["octavo-replica"] == REPLICA
    start = reader.chunks[0].start
    assert (start.seed, start.model, start.replica) == (5, MODEL, REPLICA)
    assert start.max_tokens == len(ids)
    usage = reader.chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (2, len(ids), 1)
    assert (finish.number, finish.num_tokens) == (submit.number, len(ids))
    assert finish.reason == engine.END_REASON_LENGTH
    assert core.gaps == []


async def test_no_header_comes_before_the_core_accepts(service: Service) -> None:
    reader = Reader(service.stub, generation())
    submit = await service.core.expect("submit")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await asyncio.shield(asyncio.ensure_future(reader.call.initial_metadata()))
    await service.core.accept(submit)
    async with asyncio.timeout(WAIT_LIMIT_S):
        headers = dict(await reader.call.initial_metadata())
    assert headers["octavo-request-id"] == submit.request_id
    reader.call.cancel()


async def test_the_first_token_is_written_at_once(service: Service) -> None:
    reader = Reader(service.stub, generation(stream_interval=1000))
    submit = await service.core.expect("submit")
    await service.core.accept(submit)
    await service.core.deliver(submit.number, service.ids("a"))
    chunk = await reader.read_one()
    assert chunk is not None
    assert [delta.text for delta in chunk.outputs] == ["a"]
    reader.call.cancel()


async def test_a_stream_interval_gathers_tokens(service: Service) -> None:
    reader = Reader(service.stub, generation(stream_interval=4))
    submit = await service.core.expect("submit")
    await service.core.accept(submit)
    await service.core.deliver(submit.number, service.ids("a"))
    assert await reader.read_one() is not None
    ids = service.ids("bcdefghijk")
    for index, token in enumerate(ids[:-1], start=1):
        await service.core.deliver(submit.number, [token], first=index)
        await asyncio.sleep(0.02)  # each would be a chunk of its own
    await service.core.deliver(submit.number, ids[-1:], first=10, end=engine.END_REASON_LENGTH)
    await reader.read_all()
    sizes = [len(chunk.outputs[0].token_ids) for chunk in reader.chunks]
    assert sizes[0] == 1
    assert all(size >= 4 for size in sizes[1:-1])
    assert reader.texts == ["abcdefghijk"]


async def test_half_a_character_is_held_until_it_is_whole(service: Service) -> None:
    reader = Reader(service.stub, generation())
    submit = await service.core.expect("submit")
    await service.core.accept(submit)
    ids = service.ids("a€b")  # 1 + 3 + 1 bytes, one token each
    for index, token in enumerate(ids):
        await service.core.deliver(submit.number, [token], first=index)
        await asyncio.sleep(0.02)
    await service.core.deliver(submit.number, first=len(ids), end=engine.END_REASON_LENGTH)
    await reader.read_all()
    deltas = [d for chunk in reader.chunks for d in chunk.outputs if d.token_ids]
    assert [(d.text, len(d.token_ids)) for d in deltas] == [("a", 1), ("€", 3), ("b", 1)]


async def test_a_stop_string_found_late_cuts_text_and_tokens(service: Service) -> None:
    """The core ran two tokens ahead before it heard of the stop."""
    core = service.core
    reader = Reader(service.stub, generation(stop=["STOP"]))
    submit = await core.expect("submit")
    await core.accept(submit)
    ids = service.ids("one two STOPxy")
    await core.deliver(submit.number, ids)
    await reader.read_all()
    finish = await core.expect("finish")
    assert reader.texts == ["one two "]
    assert reader.ids == [service.ids("one two STOP")]
    sent = reader.finishes[0]
    assert (sent.reason, sent.stop_string) == (api.FINISH_REASON_STOP_STRING, "STOP")
    assert sent.num_tokens == finish.num_tokens == len("one two STOP")
    assert (finish.reason, finish.stop_string) == (engine.END_REASON_STOP_STRING, "STOP")


async def test_a_stop_string_wins_over_the_cores_end_behind_it(service: Service) -> None:
    core = service.core
    reader = Reader(service.stub, generation(stop=["T"], include_stop=True))
    submit = await core.expect("submit")
    await core.accept(submit)
    ids = service.ids("abTcd")
    await core.deliver(submit.number, ids, end=engine.END_REASON_LENGTH)
    await reader.read_all()
    finish = await core.expect("finish")
    assert reader.texts == ["abT"]
    assert (finish.num_tokens, finish.reason) == (3, engine.END_REASON_STOP_STRING)


async def test_text_held_for_a_stop_string_comes_with_another_end(service: Service) -> None:
    core = service.core
    reader = Reader(service.stub, generation(stop=["STOP"]))
    submit = await core.expect("submit")
    await core.accept(submit)
    ids = service.ids("abSTO")
    await core.deliver(submit.number, ids)
    first = await reader.read_one()
    assert first is not None
    assert first.outputs[0].text == "ab"
    await core.deliver(submit.number, first=len(ids), end=engine.END_REASON_LENGTH)
    await reader.read_all()
    assert reader.texts == ["abSTO"]
    assert reader.ids == [ids]


async def test_a_stop_string_within_min_tokens_does_not_count(service: Service) -> None:
    core = service.core
    reader = Reader(service.stub, generation(stop=["ab"], min_tokens=3))
    submit = await core.expect("submit")
    assert submit.min_tokens == 3
    await core.accept(submit)
    await core.deliver(submit.number, service.ids("ab ab"))
    await reader.read_all()
    assert reader.texts == ["ab "]
    assert reader.finishes[0].num_tokens == 5


async def test_an_end_token_has_its_id_but_no_text(service: Service) -> None:
    core = service.core
    reader = Reader(service.stub, generation(skip_special_tokens=False))
    submit = await core.expect("submit")
    assert list(submit.eos_token_ids) == [END_ID]
    await core.accept(submit)
    ids = [*service.ids("ok"), END_ID]
    await core.deliver(submit.number, ids, end=engine.END_REASON_EOS, stop_token_id=END_ID)
    await reader.read_all()
    finish = await core.expect("finish")
    assert (reader.texts, reader.ids) == (["ok"], [ids])
    sent = reader.finishes[0]
    assert (sent.reason, sent.stop_token_id) == (api.FINISH_REASON_EOS, END_ID)
    assert sent.num_tokens == finish.num_tokens == 3


@pytest.mark.parametrize(("include_stop", "text"), [(None, "ab"), (True, "abX")])
async def test_a_stop_ids_text_stays_only_when_asked_for(
    service: Service, *, include_stop: bool | None, text: str
) -> None:
    """Also when its end comes in a later message than the token."""
    core = service.core
    [stop_id] = service.ids("X")
    wanted = generation(stop_token_ids=[stop_id], include_stop=include_stop)
    reader = Reader(service.stub, wanted)
    submit = await core.expect("submit")
    assert list(submit.stop_token_ids) == [stop_id]
    await core.accept(submit)
    ids = service.ids("abX")
    await core.deliver(submit.number, ids)
    await asyncio.sleep(0.05)
    await core.deliver(
        submit.number, first=3, end=engine.END_REASON_STOP_TOKEN, stop_token_id=stop_id
    )
    await reader.read_all()
    assert (reader.texts, reader.ids) == ([text], [ids])
    assert reader.finishes[0].reason == api.FINISH_REASON_STOP_TOKEN


async def test_outputs_end_one_by_one(service: Service) -> None:
    core = service.core
    reader = Reader(service.stub, generation(n=2, seed=1))
    submit = await core.expect("submit")
    assert submit.num_outputs == 2
    await core.accept(submit)
    first, second = service.ids("first"), service.ids("second!")
    await core.deliver(submit.number, first[:2], output=0)
    await core.deliver(submit.number, second[:3], output=1)
    await core.deliver(submit.number, first[2:], first=2, output=0, end=engine.END_REASON_LENGTH)
    assert (await core.expect("finish")).output_index == 0
    await core.deliver(submit.number, second[3:], first=3, output=1, end=engine.END_REASON_LENGTH)
    await reader.read_all()
    assert (await core.expect("finish")).output_index == 1
    assert reader.texts == ["first", "second!"]
    assert [finish.num_tokens for finish in reader.finishes] == [5, 7]
    assert reader.chunks[-1].usage.completion_tokens == 12


async def test_one_failed_output_ends_in_band(service: Service) -> None:
    core = service.core
    reader = Reader(service.stub, generation(n=2))
    submit = await core.expect("submit")
    await core.accept(submit)
    await core.deliver(submit.number, output=0, end=engine.END_REASON_ERROR, message="no numbers")
    await core.deliver(submit.number, service.ids("fine"), output=1, end=engine.END_REASON_LENGTH)
    await reader.read_all()
    assert [f.reason for f in reader.finishes] == [
        api.FINISH_REASON_ERROR,
        api.FINISH_REASON_LENGTH,
    ]
    assert reader.finishes[0].message == "no numbers"


async def test_all_outputs_failed_is_an_internal_error(service: Service) -> None:
    core = service.core
    reader = Reader(service.stub, generation(n=2))
    submit = await core.expect("submit")
    await core.accept(submit)
    for index in range(2):
        await core.deliver(
            submit.number, output=index, end=engine.END_REASON_ERROR, message="no numbers"
        )
    refusal = await refusal_of(reader)
    assert refusal.code is grpc.StatusCode.INTERNAL
    assert (refusal.info.domain, refusal.info.reason) == ("octavo", "GENERATION_FAILED")
    assert [f.reason for f in reader.finishes] == [api.FINISH_REASON_ERROR] * 2
    assert "no numbers" in refusal.text


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (engine.END_REASON_TIME_LIMIT, api.FINISH_REASON_TIME_LIMIT),
        (engine.END_REASON_CANCELLED, api.FINISH_REASON_CANCELLED),
    ],
)
async def test_ends_from_outside_come_in_band(
    service: Service, end: engine.EndReason.ValueType, reason: api.FinishReason.ValueType
) -> None:
    core = service.core
    reader = Reader(service.stub, generation())
    submit = await core.expect("submit")
    await core.accept(submit)
    await core.deliver(submit.number, service.ids("abc"), end=end)
    await reader.read_all()
    assert (reader.texts, reader.finishes[0].reason) == (["abc"], reason)


async def test_a_unary_answer_equals_the_joined_stream(service: Service) -> None:
    core = service.core
    wanted = generation(n=2, seed=3, stop=["!"])
    request = api.GenerateUnaryRequest(generation=wanted)
    call = service.stub.GenerateUnary(request, timeout=WAIT_LIMIT_S)
    submit = await core.expect("submit")
    await core.accept(submit, max_tokens=50)
    await core.deliver(submit.number, service.ids("one!more"), output=0)
    await core.deliver(submit.number, service.ids("two"), output=1, end=engine.END_REASON_LENGTH)
    async with asyncio.timeout(WAIT_LIMIT_S):
        response = await call
        headers = dict(await call.initial_metadata())
    assert [output.text for output in response.outputs] == ["one", "two"]
    assert list(response.outputs[0].token_ids) == service.ids("one!")
    assert response.outputs[0].finish.stop_string == "!"
    assert response.start.seed == 3
    assert response.start.max_tokens == 50
    assert response.usage.completion_tokens == 7
    assert response.request_id == submit.request_id == headers["octavo-request-id"]


async def test_the_same_request_has_one_digest_by_stream_and_unary(service: Service) -> None:
    wanted = generation(request_id="same", stop=["x"])
    reader = Reader(service.stub, wanted)
    streamed = await service.core.expect("submit")
    unary = service.stub.GenerateUnary(api.GenerateUnaryRequest(generation=wanted))
    second = await service.core.expect("submit")
    assert len(streamed.body_digest) == 16
    assert second.body_digest == streamed.body_digest
    other = Reader(service.stub, generation(request_id="same", stop=["y"]))
    assert (await service.core.expect("submit")).body_digest != streamed.body_digest
    for call in (reader.call, unary, other.call):
        call.cancel()


async def test_an_unset_seed_is_drawn_and_told(service: Service) -> None:
    seeds = set()
    for _ in range(2):
        reader = Reader(service.stub, generation())
        submit = await service.core.expect("submit")
        await service.core.accept(submit)
        await service.core.deliver(submit.number, service.ids("a"), end=engine.END_REASON_LENGTH)
        await reader.read_all()
        await service.core.expect("finish")
        assert reader.chunks[0].start.seed == submit.sampling.seed
        seeds.add(submit.sampling.seed)
    assert len(seeds) == 2
