"""Batches: answers as they end, errors of their own, what broke is asked for again."""

import grpc
import pytest

import octavo
from octavo.batch_request import BatchRequest
from octavo.prompts import MessagesInput, PromptInput
from octavo.v1 import inference_pb2
from tests.fakes.inference_server import FakeInferenceServer, Refusal
from tests.unit.sdk.conftest import SOON

GONE = Refusal(
    code=grpc.StatusCode.UNAVAILABLE,
    reason="DRAINED",
    details={"resumable": "true"},
    after_chunks=2,
)


def test_answers_carry_the_place_of_their_prompt(client: octavo.Client) -> None:
    prompts: list[PromptInput | MessagesInput] = [
        "one",
        [ord("t")],
        [octavo.Message("user", "three")],
    ]
    answers = list(client.generate_batch(prompts, max_tokens=13))
    assert [answer.index for answer in answers] == [2, 1, 0]
    texts = {answer.index: answer.result().text for answer in answers}
    assert texts == {0: "You said: one", 1: "You said: t", 2: "You said: thr"}
    assert len({answer.result().request_id for answer in answers}) == 3
    assert answers[0].result().finish_reason is octavo.FinishReason.LENGTH


def test_each_prompt_may_have_params_of_its_own(client: octavo.Client) -> None:
    params = [octavo.SamplingParams(n=count) for count in (1, 2)]
    answers = list(client.generate_batch(["a", "b"], params=params))
    assert {a.index: len(a.result().outputs) for a in answers} == {0: 1, 1: 2}


def test_one_that_fails_takes_no_other_with_it(client: octavo.Client) -> None:
    answers = list(client.generate_batch(["a", "bad", "c"]))
    by_index = {answer.index: answer for answer in answers}
    assert by_index[0].result().text == "You said: a"
    failed = by_index[1]
    assert failed.generation is None
    assert isinstance(failed.error, octavo.InvalidRequest)
    assert failed.error.violations == (octavo.Violation("prompt", "is bad"),)
    with pytest.raises(octavo.InvalidRequest, match="is bad"):
        failed.result()
    assert by_index[2].error is None


def test_what_a_lost_connection_left_is_asked_for_again(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    server.refuse(GONE, Refusal(code=grpc.StatusCode.UNAVAILABLE))
    answers = list(client.generate_batch([str(number) for number in range(5)]))
    assert server.batch_sizes == [5, 3, 3]
    assert sorted(answer.index for answer in answers) == [0, 1, 2, 3, 4]
    assert all(a.result().text == f"You said: {a.index}" for a in answers)


def test_a_refused_batch_raises(client: octavo.Client, server: FakeInferenceServer) -> None:
    server.refuse(Refusal(code=grpc.StatusCode.INVALID_ARGUMENT, message="generations: 0"))
    with pytest.raises(octavo.InvalidRequest):
        next(client.generate_batch(["x"]))


def test_more_than_one_call_takes_go_into_several(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    answers = list(client.generate_batch(["x"] * 1500))
    assert server.batch_sizes == [1024, 476]
    assert sorted(answer.index for answer in answers) == list(range(1500))


def test_leaving_early_ends_the_call(client: octavo.Client, server: FakeInferenceServer) -> None:
    server.hold_after_chunks = 1
    answers = client.generate_batch(["a", "b", "c"])
    assert next(answers).index == 2
    answers.close()  # type: ignore[attr-defined]  # it is a generator
    assert server.wait_for_departure("batch")


@pytest.mark.parametrize(
    ("prompts", "options", "field"),
    [
        ("text", {}, "prompts"),
        (["a"], {"request_id": "x"}, "request_id"),
        (["a"], {"params": []}, "params"),
        ([5], {}, "prompt"),
    ],
)
def test_a_batch_that_cannot_be_sent_is_refused_at_once(
    client: octavo.Client, prompts: object, options: dict[str, object], field: str
) -> None:
    with pytest.raises(octavo.InvalidRequest) as caught:
        client.generate_batch(prompts, **options)  # type: ignore[arg-type]
    assert caught.value.violations[0].field == field


def test_answers_that_nobody_asked_for_break_the_contract() -> None:
    request = BatchRequest([inference_pb2.Generation(request_id="a")])
    request.message()
    answer = inference_pb2.GenerateBatchResponse(index=0)
    assert request.absorb(answer).index == 0
    for response in (answer, inference_pb2.GenerateBatchResponse(index=7)):
        with pytest.raises(octavo.InternalError):
            request.absorb(response)
    unanswered = BatchRequest([inference_pb2.Generation()])
    unanswered.message()
    with pytest.raises(octavo.InternalError, match="without an answer to entry 0"):
        unanswered.check_call_ended()


async def test_the_asyncio_client_does_the_same(server: FakeInferenceServer) -> None:
    server.refuse(GONE)
    async with octavo.AsyncClient(server.target, retry=SOON) as client:
        answers = [one async for one in client.generate_batch(["a", "bad", "c", "d"])]
    assert server.batch_sizes == [4, 2]
    assert [answer.index for answer in answers] == [3, 2, 1, 0]
    assert [answer.error is None for answer in answers] == [True, True, False, True]
