"""Log probabilities, vectors and scores as users get them, over any number of calls."""

from typing import Any

import pytest

import octavo
from octavo.recovery import Opening
from octavo.requests import generation_message
from octavo.stream_state import StreamState
from octavo.v1 import inference_pb2 as api
from octavo.vectors import embed_request, score_request
from tests.fakes.inference_server import FakeInferenceServer

END = api.Finish(reason=api.FINISH_REASON_LENGTH, num_tokens=3)


def told(token: int) -> api.TokenLogprob:
    return api.TokenLogprob(
        token_id=token,
        logprob=-1.5,
        rank=2,
        top=[api.TokenAlternative(token_id=9, logprob=-0.5)],
        chosen=[api.TokenAlternative(token_id=4, logprob=-7)],
    )


def expected(token: int) -> octavo.TokenLogprob:
    return octavo.TokenLogprob(
        token_id=token,
        logprob=-1.5,
        rank=2,
        top=(octavo.TokenAlternative(token_id=9, logprob=-0.5),),
        chosen=(octavo.TokenAlternative(token_id=4, logprob=-7.0),),
    )


def chunk(first: int, ids: list[int], *, prompt: bool = False, **fields: Any) -> api.StreamChunk:
    delta = api.OutputDelta(
        first_token_index=first, token_ids=ids, logprobs=map(told, ids), **fields
    )
    start = api.StreamStart(replica="one", seed=7, model="m")
    return api.StreamChunk(
        outputs=[delta], start=start, prompt_logprobs=[told(1), told(2)] if prompt else []
    )


def test_what_is_told_of_tokens_is_kept_over_calls() -> None:
    state = StreamState("r", num_outputs=1)
    (delta,) = state.absorb(chunk(0, [97], prompt=True))
    assert delta.logprobs == (expected(97),)
    state.expect(Opening.ATTACH)
    state.absorb(chunk(1, [98], prompt=True))
    state.expect(Opening.RESUME)
    # what ran elsewhere says the prompt's again
    state.absorb(chunk(2, [99], prompt=True, finish=END))
    result = state.generation()
    assert result.outputs[0].logprobs == tuple(map(expected, (97, 98, 99)))
    assert result.prompt_logprobs == (expected(1), expected(2))


def message_of(**options: Any) -> api.Generation:
    return generation_message(api.Prompt(text="a"), params=None, options=options)  # type: ignore[arg-type] # by name


def test_every_wish_reaches_its_field() -> None:
    message = message_of(
        repetition_penalty=1.5,
        frequency_penalty=-1,
        presence_penalty=2,
        logit_bias={4: -3.5},
        allowed_token_ids=[3, 4],
        bad_words=["x", "y"],
        top_logprobs=0,
        logprob_token_ids=[7],
        prompt_top_logprobs=5,
    )
    sampling = message.sampling
    penalties = (
        sampling.repetition_penalty,
        sampling.frequency_penalty,
        sampling.presence_penalty,
    )
    assert penalties == (1.5, -1.0, 2.0)
    assert dict(sampling.logit_bias) == {4: -3.5}
    assert list(sampling.allowed_token_ids) == [3, 4]
    assert list(sampling.bad_words) == ["x", "y"]
    output = message.output
    assert output.HasField("top_logprobs")
    assert (output.top_logprobs, output.prompt_top_logprobs) == (0, 5)
    assert list(output.logprob_token_ids) == [7]
    assert list(message_of(bad_words="x").sampling.bad_words) == ["x"]
    params = octavo.SamplingParams(bad_words="x", allowed_token_ids=[1], logit_bias={1: 2})
    by_params = generation_message(api.Prompt(text="a"), params=params, options={})
    assert dict(by_params.sampling.logit_bias) == {1: 2.0}
    assert list(by_params.sampling.allowed_token_ids) == [1]


@pytest.mark.parametrize(
    "options",
    [{"logit_bias": [1]}, {"logit_bias": {"a": 1}}, {"top_logprobs": 1.5}, {"bad_words": [1]}],
)
def test_what_no_message_can_hold_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(octavo.InvalidRequest, match=next(iter(options))):
        message_of(**options)


def test_vectors_and_scores_come_from_both_clients(server: FakeInferenceServer) -> None:
    with octavo.Client(server.target) as client:
        found = client.embed(["ab", "c"])
        assert found.vectors == ((2.0, 1.0), (1.0, 1.0))
        assert found.usage.prompt_tokens == 3
        assert client.embed("abc").vectors == ((3.0, 1.0),)
        scores = client.score("a", ["bc", [100]]).scores
        assert [one.logprob for one in scores] == [-2.0, -1.0]
        assert [[t.token_id for t in one.tokens] for one in scores] == [[98, 99], [100]]
        assert not scores[0].is_greedy


async def test_the_async_client_is_its_twin(server: FakeInferenceServer) -> None:
    async with octavo.AsyncClient(server.target) as client:
        assert (await client.embed("abc")).vectors == ((3.0, 1.0),)
        assert (await client.score("a", ["b"])).scores[0].logprob == -1.0


def test_prompts_of_any_kind_are_taken() -> None:
    def kinds(prompts: Any) -> list[str | None]:
        request = embed_request(prompts, pooling="mean", normalize=False, priority=2)
        assert (request.pooling, request.scheduling.priority) == (api.POOLING_MEAN, 2)
        assert request.HasField("normalize")
        return [prompt.WhichOneof("kind") for prompt in request.prompts]

    assert kinds("a") == ["text"]
    assert kinds([1, 2]) == ["token_ids"]
    assert kinds(["a", [1, 2]]) == ["text", "token_ids"]
    assert kinds([]) == []
    with pytest.raises(octavo.InvalidRequest, match="pooling"):
        embed_request("a", pooling="max", normalize=True, priority=0)  # type: ignore[arg-type]
    with pytest.raises(octavo.InvalidRequest, match="continuations"):
        score_request("a", "b", priority=0)
