"""What the core tells of tokens reaches the client with them, whatever happens in between."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from google.protobuf.message import Message

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from tests.unit.frontend.frontend_service import Service
from tests.unit.frontend.scripted_core import output
from tests.unit.frontend.stream_reader import Reader, generation


def record(token: int, *, num_top: int = 1, chosen: Sequence[float] = ()) -> bytes:
    """Of a token that is as likely as its id says, at rank id + 1."""
    pairs = [word for place in range(num_top) for word in (token + place, -0.5 * place)]
    layout = "<fi" + "if" * num_top + "f" * len(chosen)
    return struct.pack(layout, -float(token), token + 1, *pairs, *chosen)


def told(token: int, *, num_top: int = 1, chosen: dict[int, float] | None = None) -> Message:
    return api.TokenLogprob(
        token_id=token,
        logprob=-float(token),
        rank=token + 1,
        top=[
            api.TokenAlternative(token_id=token + place, logprob=-0.5 * place)
            for place in range(num_top)
        ],
        chosen=[
            api.TokenAlternative(token_id=token_id, logprob=logprob)
            for token_id, logprob in (chosen or {}).items()
        ],
    )


def wishing(text: str = "hi", **output: object) -> api.Generation:
    wished = generation(text, request_id="r", max_tokens=9, keep_for_s=30)
    wished.output.MergeFrom(api.OutputParams(**output))  # type: ignore[arg-type] # by name
    return wished


def logprobs_of(reader: Reader) -> list[Message]:
    return [one for chunk in reader.chunks for delta in chunk.outputs for one in delta.logprobs]


async def test_each_token_comes_with_its_record(service: Service) -> None:
    core, ids = service.core, service.ids("abc")
    reader = Reader(service.stub, wishing(top_logprobs=1, logprob_token_ids=[7, 3]))
    submit = await core.expect("submit")
    await core.accept(submit)
    first = record(ids[0], chosen=(-1.5, -2.5))
    await core.deliver(submit.number, ids[:1], records=first)
    both = b"".join(record(one, chosen=(-1.5, -2.5)) for one in ids[1:])
    await core.deliver(submit.number, ids[1:], first=1, records=both, end=engine.END_REASON_LENGTH)
    await reader.read_all()
    expected = [told(one, chosen={7: -1.5, 3: -2.5}) for one in ids]
    assert logprobs_of(reader) == expected
    for chunk in reader.chunks:
        for delta in chunk.outputs:
            assert [one.token_id for one in delta.logprobs] == list(delta.token_ids)


async def test_nothing_is_told_unasked(service: Service) -> None:
    reader = Reader(service.stub, wishing())
    submit = await service.core.expect("submit")
    await service.core.accept(submit)
    ids = service.ids("a")
    await service.core.deliver(submit.number, ids, end=engine.END_REASON_LENGTH)
    await reader.read_all()
    assert logprobs_of(reader) == []
    assert not any(chunk.prompt_logprobs for chunk in reader.chunks)


async def test_a_prompts_records_come_in_pieces_and_go_out_at_once(service: Service) -> None:
    core, prompt = service.core, service.ids("hello")
    reader = Reader(service.stub, wishing("hello", prompt_top_logprobs=2))
    submit = await core.expect("submit")
    assert (submit.prompt_records_from, submit.num_prompt_top_logprobs) == (1, 2)
    await core.accept(submit)
    records = [record(one, num_top=2) for one in prompt[1:]]
    await core.deliver(submit.number, prompt_records=[(1, records[0])])
    # a piece that is known already comes again after a break
    await core.deliver(submit.number, prompt_records=[(1, b"".join(records[:3]))])
    ids = service.ids("ab")
    await core.deliver(submit.number, ids[:1], prompt_records=[(4, records[3])])
    await core.deliver(submit.number, ids[1:], first=1, end=engine.END_REASON_LENGTH)
    await reader.read_all()
    assert list(reader.chunks[0].prompt_logprobs) == [told(one, num_top=2) for one in prompt[1:]]
    assert not any(chunk.prompt_logprobs for chunk in reader.chunks[1:])
    assert logprobs_of(reader) == []


async def test_a_new_core_is_told_what_is_known(service: Service) -> None:
    core, ids = service.core, service.ids("abc")
    reader = Reader(service.stub, wishing("hey", top_logprobs=0, prompt_top_logprobs=0))
    submit = await core.expect("submit")
    await core.accept(submit)
    prompt = [record(one, num_top=0) for one in service.ids("hey")[1:]]
    first = record(ids[0], num_top=0)
    await core.deliver(submit.number, ids[:1], records=first, prompt_records=[(1, prompt[0])])
    await reader.read_one()
    await core.restart()
    again = await core.expect("submit")
    assert again.resume[0].records == first
    assert again.prompt_records == prompt[0]
    await core.accept(again)
    rest = b"".join(record(one, num_top=0) for one in ids[1:])
    await core.deliver(again.number, ids[1:], first=1, records=rest, end=engine.END_REASON_LENGTH)
    await reader.read_all()
    assert logprobs_of(reader) == [told(one, num_top=0) for one in ids]


async def test_who_attaches_is_told_of_what_it_has_not(service: Service) -> None:
    core, ids = service.core, service.ids("abcd")
    reader = Reader(service.stub, api.AttachRequest(request_id="r", from_tokens=[1]), received=[1])
    attach = await core.expect("attach")
    prompt = b"".join(record(one, num_top=0) for one in service.ids("hi")[1:])
    await core.send(
        engine.CoreToFrontend(
            attached=engine.Attached(
                number=attach.number,
                submit=await _submitted(service),
                outputs=[
                    engine.AttachedOutput(
                        tokens=struct.pack("<2i", *ids[:2]),
                        records=b"".join(record(one) for one in ids[:2]),
                    )
                ],
                max_tokens=9,
                num_cached_tokens=0,
                prompt_records=prompt,
            )
        )
    )
    await core.deliver(attach.number, ids[2:3], first=2, records=record(ids[2]))
    await core.deliver(
        attach.number, ids[3:], first=3, records=record(ids[3]), end=engine.END_REASON_LENGTH
    )
    await reader.read_all()
    assert logprobs_of(reader) == [told(one) for one in ids[1:]]
    assert [one.token_id for one in reader.chunks[0].prompt_logprobs] == service.ids("hi")[1:]


async def test_an_end_may_come_without_a_token(service: Service) -> None:
    """As the core's word alone, and to a caller that has attached with all tokens received."""
    core, ids = service.core, service.ids("abc")
    first = Reader(service.stub, wishing(top_logprobs=1, logprob_token_ids=[7]))
    submit = await core.expect("submit")
    await core.accept(submit)
    records = b"".join(record(one, chosen=[-1.5]) for one in ids)
    await core.deliver(submit.number, ids, records=records)
    await first.read_one()
    await core.deliver(submit.number, first=len(ids), end=engine.END_REASON_LENGTH)
    await first.read_all()
    await core.expect("finish")
    assert logprobs_of(first) == [told(one, chosen={7: -1.5}) for one in ids]

    wanted = api.AttachRequest(request_id="r", from_tokens=[len(ids)])
    again = Reader(service.stub, wanted, received=[len(ids)])
    attach = await core.expect("attach")
    known = output(ids, end=engine.END_REASON_LENGTH)
    known.records = records
    await core.attached(attach.number, submit, [known])
    await again.read_all()
    assert logprobs_of(again) == []
    for reader in (first, again):
        assert reader.chunks[-1].outputs[0].finish.num_tokens == len(ids)


async def test_a_prompt_of_one_token_has_nothing_to_tell(service: Service) -> None:
    core, prompt = service.core, service.ids("h")
    assert len(prompt) == 1
    reader = Reader(service.stub, wishing("h", prompt_top_logprobs=2))
    submit = await core.expect("submit")
    await core.accept(submit)
    await core.deliver(submit.number, service.ids("a"), end=engine.END_REASON_LENGTH)
    await reader.read_all()
    assert reader.texts == ["a"]
    assert not any(chunk.prompt_logprobs for chunk in reader.chunks)


async def _submitted(service: Service) -> engine.Submit:
    """The body of a request with everything, as a core gives it back."""
    reader = Reader(service.stub, wishing(top_logprobs=1, prompt_top_logprobs=0))
    submit = await service.core.expect("submit")
    await service.core.reject(submit.number, engine.REJECT_REASON_DRAINING)
    reader.call.cancel()
    kept = engine.Submit()
    kept.CopyFrom(submit)
    return kept


async def test_tokens_brought_along_are_told_by_id_alone(service: Service) -> None:
    core, ids = service.core, service.ids("abc")
    resume = api.Resume(outputs=[api.ResumedOutput(token_ids=ids[:1])], seed=4)
    reader = Reader(service.stub, wishing(top_logprobs=1), resume=resume, received=[1])
    submit = await core.expect("submit")
    assert submit.resume[0].records == bytes(16)
    await core.accept(submit)
    await core.deliver(
        submit.number,
        ids[1:],
        first=1,
        records=b"".join(map(record, ids[1:])),
        end=engine.END_REASON_LENGTH,
    )
    await reader.read_all()
    assert logprobs_of(reader) == [told(one) for one in ids[1:]]


async def test_a_whole_answer_has_them_too(service: Service) -> None:
    core, ids = service.core, service.ids("abc")
    request = api.GenerateUnaryRequest(
        generation=wishing("hey", top_logprobs=1, prompt_top_logprobs=1)
    )
    call = service.stub.GenerateUnary(request)
    submit = await core.expect("submit")
    await core.accept(submit)
    prompt = b"".join(record(one) for one in service.ids("hey")[1:])
    await core.deliver(submit.number, prompt_records=[(1, prompt)])
    await core.deliver(
        submit.number, ids, records=b"".join(map(record, ids)), end=engine.END_REASON_LENGTH
    )
    answer = await call
    assert list(answer.outputs[0].logprobs) == [told(one) for one in ids]
    assert list(answer.prompt_logprobs) == [told(one) for one in service.ids("hey")[1:]]
