"""Streams that go on: Attach, repeated requests, resume. Joined text never repeats or skips."""

from __future__ import annotations

import grpc
import pytest

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from tests.unit.frontend.frontend_service import Service
from tests.unit.frontend.scripted_core import output
from tests.unit.frontend.stream_reader import Reader, generation, refusal_of

TEXT = "naïve café — 12€ STOP"


async def submitted(service: Service, wanted: api.Generation) -> tuple[Reader, engine.Submit]:
    """An accepted request."""
    reader = Reader(service.stub, wanted)
    submit = await service.core.expect("submit")
    await service.core.accept(submit)
    return reader, submit


def attach(service: Service, received: list[int], *, request_id: str = "mine") -> Reader:
    wanted = api.AttachRequest(request_id=request_id, from_tokens=received)
    return Reader(service.stub, wanted, received=received)


async def test_an_attached_stream_goes_on_at_every_token(service: Service) -> None:
    """Wherever a stream broke, the two parts make the whole."""
    core, ids = service.core, service.ids(TEXT)
    wanted = generation(request_id="mine", stop=["STOP"], seed=9)
    whole, submit = await submitted(service, wanted)
    for index, token in enumerate(ids):  # one by one: the finest chunks a client may see
        await core.deliver(submit.number, [token], first=index)
    await whole.read_all()
    await core.expect("finish")
    assert whole.texts == ["naïve café — 12€ "]
    ends = [0]
    texts = [""]
    for delta in (d for chunk in whole.chunks for d in chunk.outputs):
        ends.append(ends[-1] + len(delta.token_ids))
        texts.append(texts[-1] + delta.text)
    for received, text in list(zip(ends, texts, strict=True))[:-1]:
        reader = attach(service, [received])
        order = await core.expect("attach")
        assert order.request_id == "mine"
        await core.attached(order.number, submit, [output(ids[: len(ids) // 2 + received // 2])])
        known = len(ids) // 2 + received // 2
        await core.deliver(order.number, ids[known:], first=known)
        await reader.read_all()
        await core.expect("finish")
        assert text + reader.texts[0] == whole.texts[0]
        assert reader.ids[0] == ids[received:]
        start = reader.chunks[0].start
        assert (start.seed, start.max_tokens) == (9, 100)
        assert reader.chunks[-1].usage.completion_tokens == len(ids)


async def test_attaching_to_an_ended_request_gives_all_of_it(service: Service) -> None:
    wanted = generation(request_id="mine", n=2, keep_for_s=30)
    first, submit = await submitted(service, wanted)
    one, two = service.ids("one"), service.ids("two")
    await service.core.deliver(submit.number, one, output=0, end=engine.END_REASON_LENGTH)
    await service.core.deliver(submit.number, two, output=1, end=engine.END_REASON_LENGTH)
    await first.read_all()
    for _ in range(2):
        await service.core.expect("finish")
    again = attach(service, [])
    order = await service.core.expect("attach")
    ended = [output(ids, end=engine.END_REASON_LENGTH) for ids in (one, two)]
    await service.core.attached(order.number, submit, ended)
    await again.read_all()
    assert again.texts == ["one", "two"]
    finishes = [await service.core.expect("finish") for _ in range(2)]
    assert {finish.number for finish in finishes} == {order.number}


async def test_everything_received_leaves_only_the_ends(service: Service) -> None:
    _, submit = await submitted(service, generation(request_id="mine"))
    ids = service.ids("done")
    again = attach(service, [4])
    order = await service.core.expect("attach")
    await service.core.attached(order.number, submit, [output(ids, end=engine.END_REASON_LENGTH)])
    await again.read_all()
    [chunk] = again.chunks
    [delta] = chunk.outputs
    assert (delta.text, list(delta.token_ids), delta.first_token_index) == ("", [], 4)
    assert delta.finish.num_tokens == 4


async def test_a_superseded_stream_ends_and_says_nothing_more(service: Service) -> None:
    reader, submit = await submitted(service, generation(request_id="mine"))
    await service.core.deliver(submit.number, service.ids("a"))
    await reader.read_one()
    await service.core.superseded(submit.number)
    refusal = await refusal_of(reader)
    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.ABORTED, "SUPERSEDED")
    assert refusal.info.metadata["resumable"] == "true"
    await service.core.expect_nothing()


async def test_an_unknown_request_is_not_found(service: Service) -> None:
    reader = attach(service, [0], request_id="nobody")
    order = await service.core.expect("attach")
    await service.core.reject(order.number, engine.REJECT_REASON_NOT_FOUND)
    refusal = await refusal_of(reader)
    assert refusal.code is grpc.StatusCode.NOT_FOUND
    assert refusal.info.metadata["request_id"] == "nobody"


@pytest.mark.parametrize(
    ("request_id", "from_tokens", "field"),
    [("", [], "request_id"), ("a b", [], "request_id"), ("a", [0, -1], "from_tokens[1]")],
)
async def test_an_attach_that_breaks_rules_names_the_field(
    service: Service, request_id: str, from_tokens: list[int], field: str
) -> None:
    reader = attach(service, from_tokens, request_id=request_id)
    refusal = await refusal_of(reader)
    assert refusal.fields == [field]


async def test_a_client_with_more_tokens_than_are_known_is_told_to_resume(
    service: Service,
) -> None:
    _, submit = await submitted(service, generation(request_id="mine"))
    reader = attach(service, [9])
    order = await service.core.expect("attach")
    await service.core.attached(order.number, submit, [output(service.ids("abc"))])
    refusal = await refusal_of(reader)
    assert (refusal.code, refusal.info.reason) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "READER_AHEAD",
    )
    assert refusal.info.metadata["resumable"] == "true"
    assert (await service.core.expect("detach")).number == order.number


async def test_a_repeated_request_attaches_from_its_beginning(service: Service) -> None:
    wanted = generation(request_id="mine", seed=4)
    _, submit = await submitted(service, wanted)
    again = Reader(service.stub, wanted)
    second = await service.core.expect("submit")
    assert second.body_digest == submit.body_digest
    await service.core.attached(second.number, submit, [output(service.ids("abc"))])
    await service.core.deliver(
        second.number, service.ids("de"), first=3, end=engine.END_REASON_LENGTH
    )
    await again.read_all()
    assert again.texts == ["abcde"]
    assert again.chunks[0].start.seed == 4


def resumed(service: Service, *texts: str, seed: int | None = 4) -> api.Resume:
    outputs = [api.ResumedOutput(token_ids=service.ids(text)) for text in texts]
    return api.Resume(outputs=outputs, seed=seed, age_ms=1500)


async def test_a_resumed_request_goes_on_behind_what_was_received(service: Service) -> None:
    received = service.ids("The €")
    reader = Reader(
        service.stub,
        generation(request_id="mine"),
        resume=resumed(service, "The €"),
        received=[len(received)],
    )
    submit = await service.core.expect("submit")
    assert submit.sampling.seed == 4
    assert submit.age_ms >= 1500
    assert [len(one.tokens) // 4 for one in submit.resume] == [len(received)]
    assert not submit.resume[0].is_finished
    await service.core.accept(submit)
    await service.core.deliver(
        submit.number, service.ids(" sign"), first=len(received), end=engine.END_REASON_LENGTH
    )
    await reader.read_all()
    assert reader.texts == [" sign"]
    assert reader.chunks[-1].usage.completion_tokens == len(received) + 5


@pytest.mark.parametrize(
    ("limit_s", "left_ms"), [(10.0, 8500), (0.5, 1), (None, 0)], ids=["some", "over", "none"]
)
async def test_a_resumed_request_has_what_is_left_of_its_time_limit(
    limit_s: float | None, left_ms: int, service: Service
) -> None:
    wanted = generation(request_id="mine")
    if limit_s is not None:
        wanted.stopping.time_limit_s = limit_s
    reader = Reader(service.stub, wanted, resume=resumed(service, "ab"), received=[2])
    submit = await service.core.expect("submit")
    assert left_ms - 200 * (left_ms > 200) <= submit.time_limit_ms <= left_ms
    await service.core.accept(submit)
    await service.core.deliver(
        submit.number, service.ids("c"), first=2, end=engine.END_REASON_TIME_LIMIT
    )
    await reader.read_all()


async def test_a_resume_counts_from_the_cores_tokens_when_those_are_more(
    service: Service,
) -> None:
    reader = Reader(
        service.stub,
        generation(request_id="mine", seed=4),
        resume=resumed(service, "ab"),
        received=[2],
    )
    submit = await service.core.expect("submit")
    await service.core.attached(submit.number, submit, [output(service.ids("abcd"))])
    await service.core.deliver(
        submit.number, service.ids("e"), first=4, end=engine.END_REASON_LENGTH
    )
    await reader.read_all()
    assert reader.texts == ["cde"]


async def test_a_finished_output_is_resumed_as_finished(service: Service) -> None:
    resume = resumed(service, "all", "par")
    resume.outputs[0].finish.reason = api.FINISH_REASON_LENGTH
    resume.outputs[0].finish.num_tokens = 3
    reader = Reader(
        service.stub,
        generation(request_id="mine", n=2),
        resume=resume,
        received=[3, 3],
    )
    submit = await service.core.expect("submit")
    assert [one.is_finished for one in submit.resume] == [True, False]
    assert submit.resume[0].reason == engine.END_REASON_LENGTH
    await service.core.accept(submit)
    await service.core.deliver(
        submit.number, service.ids("t"), first=3, output=1, end=engine.END_REASON_LENGTH
    )
    await reader.read_all()
    assert {delta.index for chunk in reader.chunks for delta in chunk.outputs} == {1}
    assert reader.chunks[-1].usage.completion_tokens == 7
    finish = await service.core.expect("finish")
    assert finish.output_index == 1
    await service.core.expect_nothing()


async def test_a_stop_string_in_resumed_text_ends_the_output_before_it_runs(
    service: Service,
) -> None:
    reader = Reader(
        service.stub,
        generation(request_id="mine", stop=["STOP"]),
        resume=resumed(service, "one STOP"),
        received=[8],
    )
    submit = await service.core.expect("submit")
    [one] = submit.resume
    assert (one.is_finished, one.reason, one.message) == (
        True,
        engine.END_REASON_STOP_STRING,
        "STOP",
    )
    await service.core.accept(submit)
    await reader.read_all()
    [delta] = reader.chunks[-1].outputs
    assert (delta.text, delta.finish.stop_string) == ("", "STOP")


async def test_resumed_tokens_that_differ_from_the_known_ones_are_refused(
    service: Service,
) -> None:
    reader = Reader(
        service.stub,
        generation(request_id="mine", seed=4),
        resume=resumed(service, "ab"),
        received=[2],
    )
    submit = await service.core.expect("submit")
    await service.core.attached(submit.number, submit, [output(service.ids("aX"))])
    refusal = await refusal_of(reader)
    assert refusal.fields == ["resume.outputs"]
    assert (await service.core.expect("detach")).number == submit.number
