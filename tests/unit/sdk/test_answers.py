"""What a blocking client gets back from a service that answers well."""

import pytest

import octavo
from octavo.channel import client_settings
from tests.fakes.inference_server import MODEL, SEED, FakeInferenceServer


def test_chat_answers_a_conversation(client: octavo.Client) -> None:
    answer = client.chat(
        [octavo.Message("system", "Be brief."), {"role": "user", "content": "Hello!"}]
    )
    assert answer.text == "You said: Be brief. Hello!"
    assert answer.token_ids == tuple(ord(one) for one in answer.text)
    assert answer.finish_reason is octavo.FinishReason.EOS
    assert answer.outputs[0].finish == octavo.Finish(
        reason=octavo.FinishReason.EOS, num_tokens=len(answer.text), stop_token_id=0
    )
    assert answer.usage == octavo.Usage(prompt_tokens=16, completion_tokens=len(answer.text))
    assert answer.seed == SEED
    assert answer.start is not None
    assert answer.start.warnings == ("an echo",)


def test_chat_takes_one_message_as_the_users(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    client.chat("Hi")
    (message,) = server.generations[0].prompt.chat.messages
    assert (message.role, message.content) == ("user", "Hi")


@pytest.mark.parametrize(
    "prompt", ["abc", [97, 98, 99], {"prompt": "abc"}, {"prompt_token_ids": (97, 98, 99)}]
)
def test_generate_takes_text_and_token_ids(client: octavo.Client, prompt: str) -> None:
    assert client.generate(prompt).text == "You said: abc"


def test_generate_reports_the_length_limit(client: octavo.Client) -> None:
    answer = client.generate("abc", max_tokens=3)
    assert answer.text == "You"
    assert answer.finish_reason == "length"


def test_every_output_of_many_is_there(client: octavo.Client) -> None:
    answer = client.generate("a b", n=3)
    assert [output.index for output in answer.outputs] == [0, 1, 2]
    assert {output.text for output in answer.outputs} == {"You said: a b"}
    assert answer == client.stream("a b", n=3, request_id=answer.request_id).result()


def test_stream_brings_deltas_that_join_to_the_answer(client: octavo.Client) -> None:
    stream = client.stream("one two three")
    deltas = list(stream)
    assert [delta.text for delta in deltas] == ["You ", "said: ", "one ", "two ", "three"]
    assert [delta.first_token_index for delta in deltas] == [0, 4, 10, 14, 18]
    assert [delta.finish_reason for delta in deltas] == [None] * 4 + ["eos"]
    assert deltas[-1].usage.completion_tokens == 23
    assert stream.start is not None
    assert stream.start.seed == SEED
    assert stream.result().text == "You said: one two three"
    assert list(stream) == []


def test_stream_takes_conversations_in_both_ways(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    conversation = [octavo.Message("user", "x")]
    assert client.stream(messages="x").result().text == "You said: x"
    assert client.stream(conversation).result().text == "You said: x"
    assert client.stream(messages=conversation).result().text == "You said: x"
    assert {one.prompt.WhichOneof("kind") for one in server.generations} == {"chat"}


def test_attach_goes_on_after_the_tokens_that_the_caller_has(client: octavo.Client) -> None:
    whole = client.stream("a b c").result()
    rest = client.attach(whole.request_id, from_tokens=[10])
    assert next(rest).first_token_index == 10
    assert rest.result().text == "a b c"
    assert rest.request_id == whole.request_id


def test_cancel_says_what_it_found(client: octavo.Client) -> None:
    request_id = client.generate("a").request_id
    assert client.cancel(request_id) is octavo.CancelOutcome.CANCELLED
    assert client.cancel(request_id) is octavo.CancelOutcome.ALREADY_FINISHED
    with pytest.raises(octavo.NotFound):
        client.cancel("another")


def test_tokens_and_text_turn_into_each_other(client: octavo.Client) -> None:
    assert client.tokenize("ab") == octavo.Tokens(token_ids=(97, 98), text="ab")
    assert client.tokenize(messages="c").token_ids == (99,)
    assert client.estimate("abc") == octavo.Estimate(
        prompt_tokens=3,
        cached_tokens=0,
        num_requests_ahead=0,
        num_tokens_ahead=0,
        predicted_ttft_s=None,
    )
    assert client.estimate("abc", priority=2).predicted_ttft_s == 1.0
    assert client.detokenize([60, 97, 62]) == "a"
    assert client.detokenize([60, 97, 62], skip_special_tokens=False) == "<a>"


def test_model_info_tells_limits_and_defaults(client: octavo.Client) -> None:
    info = client.model_info()
    assert (info.model, info.max_sequence_tokens, info.eos_token_ids) == (MODEL, 2048, (0, 3))
    assert info.default_sampling == octavo.SamplingParams(temperature=0.5, top_k=20)


def test_api_key_and_metadata_travel_with_every_call(server: FakeInferenceServer) -> None:
    with octavo.Client(server.target, api_key="secret", metadata=[("x-team", "a")]) as client:
        client.generate("a")
        client.stream("a").result()
    for metadata in server.metadata:
        assert metadata["authorization"] == "Bearer secret"
        assert metadata["x-team"] == "a"
    assert len(server.metadata) == 2


def test_a_key_shows_in_no_error_and_no_settings() -> None:
    with pytest.raises(octavo.InvalidRequest, match="api_key: must be printable") as caught:
        octavo.Client("localhost:1", api_key="secret\n")
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(client_settings("localhost:1", api_key="secret"))


def test_a_unix_socket_is_a_target(tmp_path_factory: pytest.TempPathFactory) -> None:
    socket = tmp_path_factory.mktemp("s") / "s"
    with FakeInferenceServer(socket=socket) as server, octavo.Client(server.target) as client:
        assert client.generate("a").text == "You said: a"


def test_a_closed_client_says_so(client: octavo.Client) -> None:
    client.close()
    client.close()
    with pytest.raises(octavo.ClientClosed):
        client.generate("a")
    with pytest.raises(octavo.ClientClosed):
        client.stream("a")
