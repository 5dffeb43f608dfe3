"""What a stream knows: news must follow it, whatever calls they come from."""

from typing import Any

import pytest

import octavo
from octavo.recovery import Opening
from octavo.stream_state import OtherReplica, StreamState
from octavo.v1 import inference_pb2 as api

EOS = api.Finish(reason=api.FINISH_REASON_EOS, stop_token_id=0, num_tokens=2)


def delta(
    index: int = 0, first: int = 0, ids: tuple[int, ...] = (), finish: api.Finish | None = None
) -> api.OutputDelta:
    text = "".join(chr(one) for one in ids)
    return api.OutputDelta(
        index=index, first_token_index=first, text=text, token_ids=ids, finish=finish
    )


def chunk(
    *outputs: api.OutputDelta, start: api.StreamStart | None = None, cached: int = 0
) -> api.StreamChunk:
    usage = api.Usage(prompt_tokens=5, cached_tokens=cached)
    return api.StreamChunk(outputs=outputs, start=start, usage=usage)


def start(*, replica: str = "one", seed: int = 7, model: str = "m") -> api.StreamStart:
    return api.StreamStart(replica=replica, seed=seed, model=model)


def begun(*, num_outputs: int | None = 1) -> StreamState:
    """A stream of which the first two tokens of output 0 came, from replica one."""
    state = StreamState("r", num_outputs=num_outputs)
    state.absorb(chunk(delta(ids=(97, 98)), start=start(), cached=4))
    return state


def test_a_gap_in_an_output_is_an_error() -> None:
    state = StreamState("r", from_tokens=[3])
    state.absorb(chunk(delta(first=3, ids=(1, 2))))
    with pytest.raises(octavo.InternalError, match="at token 6, not at 5"):
        state.absorb(chunk(delta(first=6, ids=(1,))))


def test_a_repeated_token_is_an_error() -> None:
    state = StreamState("r")
    state.absorb(chunk(delta(index=1, ids=(1,))))
    with pytest.raises(octavo.InternalError, match="output 1"):
        state.absorb(chunk(delta(index=1, ids=(1,))))


def test_text_may_come_before_its_ids() -> None:
    state = StreamState("r")
    state.absorb(chunk(api.OutputDelta(index=0, text="a")))
    state.absorb(chunk(api.OutputDelta(index=0, token_ids=[1])))
    (output,) = state.generation().outputs
    assert (output.text, output.token_ids, output.finish) == ("a", (1,), None)


def test_an_end_after_other_tokens_than_came_is_an_error() -> None:
    with pytest.raises(octavo.InternalError, match="ended after 2 tokens, 3 came"):
        begun().absorb(chunk(delta(first=2, ids=(99,), finish=EOS)))


def test_news_after_an_end_is_an_error() -> None:
    state = begun()
    state.absorb(chunk(delta(first=2, finish=EOS)))
    with pytest.raises(octavo.InternalError, match="goes on after its end"):
        state.absorb(chunk(delta(first=2, finish=EOS)))


def test_an_output_that_never_came_is_missed_at_the_end() -> None:
    state = begun(num_outputs=2)
    state.absorb(chunk(delta(first=2, finish=EOS)))
    with pytest.raises(octavo.InternalError, match="output 1 did not"):
        state.check_ended()


def test_an_attach_asks_for_what_comes_after_the_known_tokens() -> None:
    state = begun(num_outputs=3)
    state.absorb(chunk(delta(index=2, ids=(1, 2, 3))))
    assert state.attach_request() == api.AttachRequest(request_id="r", from_tokens=[2, 0, 3])
    attached = StreamState("r", from_tokens=[4, 5])
    attached.absorb(chunk(delta(index=1, first=5, ids=(1,))))
    assert list(attached.attach_request().from_tokens) == [4, 6]


def test_a_resume_holds_everything_that_came() -> None:
    state = begun(num_outputs=2)
    state.absorb(chunk(delta(first=2, finish=EOS)))
    assert state.resume(age_ms=12) == api.Resume(
        outputs=[api.ResumedOutput(token_ids=[97, 98], finish=EOS), api.ResumedOutput()],
        seed=7,
        age_ms=12,
    )


def test_a_resume_of_nothing_leaves_the_seed_open() -> None:
    resume = StreamState("r", num_outputs=1).resume(age_ms=0)
    assert not resume.HasField("seed")
    assert list(resume.outputs) == [api.ResumedOutput()]


def test_an_attached_stream_may_say_an_end_again_once() -> None:
    state = begun()
    state.absorb(chunk(delta(first=2, finish=EOS)))
    state.expect(Opening.ATTACH)
    assert state.absorb(chunk(delta(first=2, finish=EOS), start=start())) == ()
    with pytest.raises(octavo.InternalError, match="after its end"):
        state.absorb(chunk(delta(first=2, finish=EOS)))


@pytest.mark.parametrize(
    "again",
    [
        delta(first=2, finish=api.Finish(reason=api.FINISH_REASON_LENGTH, num_tokens=2)),
        delta(first=2, ids=(99,), finish=EOS),
        delta(first=2),
    ],
)
def test_an_end_that_is_said_differently_is_an_error(again: api.OutputDelta) -> None:
    state = begun()
    state.absorb(chunk(delta(first=2, finish=EOS)))
    state.expect(Opening.ATTACH)
    with pytest.raises(octavo.InternalError, match="output 0"):
        state.absorb(chunk(again, start=start()))


def test_a_resumed_stream_says_no_end_again() -> None:
    state = begun(num_outputs=2)
    state.absorb(chunk(delta(first=2, finish=EOS)))
    state.expect(Opening.RESUME)
    with pytest.raises(octavo.InternalError, match="after its end"):
        state.absorb(chunk(delta(first=2, finish=EOS), start=start()))


@pytest.mark.parametrize(
    ("other", "name"), [(start(seed=8), "seed 8"), (start(model="x"), "model x")]
)
def test_a_stream_that_goes_on_as_another_is_an_error(other: api.StreamStart, name: str) -> None:
    state = begun()
    state.expect(Opening.RESUME)
    with pytest.raises(octavo.InternalError, match=name):
        state.absorb(chunk(delta(first=2, ids=(99,)), start=other))
    assert state.generation().token_ids == (97, 98)


def test_an_attach_to_another_replica_takes_nothing() -> None:
    state = begun()
    state.expect(Opening.ATTACH)
    with pytest.raises(OtherReplica):
        state.absorb(chunk(delta(first=2, ids=(99,)), start=start(replica="two")))
    assert state.generation().token_ids == (97, 98)
    state.expect(Opening.RESUME)
    assert state.absorb(chunk(delta(first=2, ids=(99,)), start=start(replica="two")))
    state.expect(Opening.ATTACH)
    assert state.absorb(chunk(delta(first=3, ids=(97,)), start=start(replica="two")))


def test_a_stream_that_cannot_be_resumed_refuses_another_replica() -> None:
    state = begun(num_outputs=None)
    state.expect(Opening.ATTACH)
    with pytest.raises(octavo.InternalError, match="at replica two, it came from one"):
        state.absorb(chunk(start=start(replica="two")))


def test_any_replica_may_go_on_with_a_stream_that_brought_nothing() -> None:
    state = StreamState("r", num_outputs=1)
    state.absorb(chunk(start=start()))
    state.expect(Opening.ATTACH)
    assert state.absorb(chunk(delta(ids=(99,)), start=start(replica="two")))


def test_cached_tokens_are_those_of_the_first_run() -> None:
    state = begun()
    state.expect(Opening.RESUME)
    (news,) = state.absorb(chunk(delta(first=2, ids=(99,)), start=start(), cached=0))
    assert news.usage == octavo.Usage(prompt_tokens=5, cached_tokens=4)


FAILED = api.Finish(reason=api.FINISH_REASON_ERROR)


@pytest.mark.parametrize(
    ("finishes", "is_complete"),
    [((EOS,), False), ((EOS, FAILED), True), ((EOS, EOS), True), ((FAILED, FAILED), False)],
)
def test_a_stream_is_complete_when_every_output_ended_and_one_well(
    finishes: tuple[api.Finish, ...], *, is_complete: bool
) -> None:
    state = StreamState("r", num_outputs=2)
    for index, finish in enumerate(finishes):
        ids = (97, 98)[: finish.num_tokens]
        state.absorb(chunk(delta(index=index, ids=ids, finish=finish)))
    assert state.is_complete == is_complete


def test_reasoning_and_calls_are_joined_by_their_index() -> None:
    state = StreamState("r", num_outputs=1)

    def news_at(first: int, **fields: Any) -> api.StreamChunk:
        output = api.OutputDelta(first_token_index=first, token_ids=[1], **fields)
        return api.StreamChunk(outputs=[output])

    call = api.ToolCallDelta
    state.absorb(news_at(0, reasoning="so "))
    [news] = state.absorb(
        news_at(1, reasoning="it is", tool_calls=[call(index=1, id="b", name="g")])
    )
    assert (news.reasoning, news.tool_calls[0].name) == ("it is", "g")
    state.absorb(
        news_at(
            2,
            text="!",
            tool_calls=[
                call(index=0, id="a", name="f", arguments_json="{}"),
                call(index=1, arguments_json='{"x": 1}'),
            ],
        )
    )
    generation = state.generation()
    assert (generation.text, generation.reasoning) == ("!", "so it is")
    assert [(one.id, one.name, one.arguments) for one in generation.tool_calls] == [
        ("a", "f", {}),
        ("b", "g", {"x": 1}),
    ]


def test_the_echoed_prompt_and_what_was_cut_are_in_the_start() -> None:
    state = StreamState("r", num_outputs=1)
    start = api.StreamStart(
        num_truncated_tokens=3, prompt=api.EchoedPrompt(text="ab", token_ids=[1, 2])
    )
    state.absorb(api.StreamChunk(start=start))
    assert state.start is not None
    assert state.start.num_truncated_tokens == 3
    assert state.start.prompt == octavo.Tokens(text="ab", token_ids=(1, 2))
