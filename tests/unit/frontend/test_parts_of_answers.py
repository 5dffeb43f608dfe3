"""Reasoning, tool calls, the echoed prompt on every path: stream, unary, n > 1, attach, resume."""

from __future__ import annotations

import asyncio

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from tests.unit.frontend.frontend_service import Service
from tests.unit.frontend.scripted_core import output
from tests.unit.frontend.stream_reader import Reader, generation

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
TEXT = f"<think>so</think>Look: {CALL}."
Parts = tuple[str, str, list[tuple[str, str, str]]]


def wanted(prompt: str = "hi", **fields: object) -> api.Generation:
    made = generation(prompt, request_id="mine", **fields)  # type: ignore[arg-type]
    made.output.split_reasoning = made.output.parse_tool_calls = True
    return made


def parts_of(deltas: list[api.OutputDelta]) -> Parts:
    calls = [
        (call.id, call.name, call.arguments_json) for delta in deltas for call in delta.tool_calls
    ]
    return "".join(d.text for d in deltas), "".join(d.reasoning for d in deltas), calls


def deltas_of(reader: Reader, index: int = 0) -> list[api.OutputDelta]:
    return [d for chunk in reader.chunks for d in chunk.outputs if d.index == index]


async def test_a_stream_has_reasoning_and_calls_apart_and_goes_on_at_every_token(
    service: Service,
) -> None:
    core, ids = service.core, service.ids(TEXT)
    whole = Reader(service.stub, wanted(n=2))
    submit = await core.expect("submit")
    await core.accept(submit)
    for place in (0, 1):
        for index, token in enumerate(ids):
            await core.deliver(submit.number, [token], first=index, output=place)
        await core.deliver(
            submit.number, first=len(ids), output=place, end=engine.END_REASON_LENGTH
        )
    await whole.read_all()
    for _ in range(2):
        await core.expect("finish")
    first, second = (parts_of(deltas_of(whole, place)) for place in (0, 1))
    assert first[:2] == second[:2] == ("Look: .", "so")
    assert [call[1:] for call in first[2]] == [("add", '{"a": 1}')]
    assert first[2][0][0].startswith("call_")
    assert first[2][0][0] != second[2][0][0]
    assert whole.ids == [ids, ids]

    received = 0
    for number, delta in enumerate(deltas_of(whole)[:-1]):
        before = parts_of(deltas_of(whole)[: number + 1])
        received += len(delta.token_ids)
        again = Reader(
            service.stub,
            api.AttachRequest(request_id="mine", from_tokens=[received, len(ids)]),
            received=[received, len(ids)],
        )
        order = await core.expect("attach")
        ended = output(ids, end=engine.END_REASON_LENGTH)
        await core.attached(order.number, submit, [ended, ended])
        await again.read_all()
        for _ in range(2):
            await core.expect("finish")
        rest = parts_of(deltas_of(again))
        assert before[0] + rest[0] == first[0]
        assert before[1] + rest[1] == first[1]
        assert before[2] + rest[2] == first[2]


async def test_a_whole_answer_and_a_resumed_one_have_the_same_parts(service: Service) -> None:
    core, ids = service.core, service.ids(TEXT)
    answering = asyncio.ensure_future(answer_of(service, wanted(seed=3)))
    submit = await core.expect("submit")
    await core.accept(submit)
    await core.deliver(submit.number, ids, end=engine.END_REASON_LENGTH)
    answer = await answering
    [whole] = answer.outputs
    assert (whole.text, whole.reasoning) == ("Look: .", "so")
    [tool_call] = whole.tool_calls
    assert (tool_call.name, tool_call.arguments_json) == ("add", '{"a": 1}')
    await core.expect("finish")

    half = ids.index(service.ids("L")[0]) + 4
    resumed = Reader(
        service.stub,
        wanted(seed=3),
        resume=api.Resume(outputs=[api.ResumedOutput(token_ids=ids[:half])], seed=3),
        received=[half],
    )
    submit = await core.expect("submit")
    await core.accept(submit)
    await core.deliver(submit.number, ids[half:], first=half, end=engine.END_REASON_LENGTH)
    await resumed.read_all()
    text, reasoning, calls = parts_of(deltas_of(resumed))
    assert (text, reasoning) == (": .", "")
    assert calls == [(tool_call.id, tool_call.name, tool_call.arguments_json)]


async def answer_of(service: Service, asked: api.Generation) -> api.GenerateUnaryResponse:
    return await service.stub.GenerateUnary(api.GenerateUnaryRequest(generation=asked))


async def test_reasoning_that_the_prompt_opened_is_reasoning_from_the_first_token(
    service: Service,
) -> None:
    reader = Reader(service.stub, wanted("Question<think>\n"))
    submit = await service.core.expect("submit")
    await service.core.accept(submit)
    ids = service.ids("hm</think>yes")
    await service.core.deliver(submit.number, ids, end=engine.END_REASON_LENGTH)
    await reader.read_all()
    assert parts_of(deltas_of(reader))[:2] == ("yes", "hm")
    await service.core.expect("finish")
    # whoever takes it over knows it too
    again = Reader(service.stub, api.AttachRequest(request_id="mine"))
    order = await service.core.expect("attach")
    await service.core.attached(order.number, submit, [output(ids, end=engine.END_REASON_LENGTH)])
    await again.read_all()
    assert parts_of(deltas_of(again))[:2] == ("yes", "hm")


async def test_a_stop_string_is_found_in_all_that_is_written(service: Service) -> None:
    reader = Reader(service.stub, wanted(stop=["stop"]))
    submit = await service.core.expect("submit")
    await service.core.accept(submit)
    await service.core.deliver(submit.number, service.ids("<think>I must stop now</think>x"))
    await reader.read_all()
    assert parts_of(deltas_of(reader)) == ("", "I must ", [])
    assert reader.finishes[0].stop_string == "stop"


async def test_the_prompt_is_echoed_as_it_was_seen_also_to_whoever_attaches(
    service: Service,
) -> None:
    asked = generation("twelve bytes", request_id="mine")
    asked.output.echo = True
    asked.prompt.truncation.max_tokens = 5
    reader = Reader(service.stub, asked)
    submit = await service.core.expect("submit")
    await service.core.accept(submit)
    await service.core.deliver(submit.number, service.ids("x"), end=engine.END_REASON_LENGTH)
    await reader.read_all()
    await service.core.expect("finish")
    again = Reader(service.stub, api.AttachRequest(request_id="mine"))
    order = await service.core.expect("attach")
    ended = output(service.ids("x"), end=engine.END_REASON_LENGTH)
    await service.core.attached(order.number, submit, [ended])
    await again.read_all()
    for one in (reader, again):
        start = one.chunks[0].start
        assert start.prompt.text == "bytes"
        assert list(start.prompt.token_ids) == service.ids("bytes")
        assert start.num_truncated_tokens == 7
        assert one.chunks[-1].usage.prompt_tokens == 5


async def test_without_echo_no_prompt_is_sent(service: Service) -> None:
    reader = Reader(service.stub, generation("secret"))
    submit = await service.core.expect("submit")
    await service.core.accept(submit)
    await service.core.deliver(submit.number, service.ids("x"), end=engine.END_REASON_LENGTH)
    await reader.read_all()
    assert not reader.chunks[0].start.HasField("prompt")
    assert b"secret" not in submit.blob
