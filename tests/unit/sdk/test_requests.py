"""How arguments become the message that is sent, and which are refused before."""

from typing import Any, get_type_hints

import pytest

import octavo
from octavo.prompts import any_prompt, chat_prompt, plain_prompt
from octavo.requests import ChatOptions, RequestOptions, generation_message, split_chat_options
from octavo.sampling import SamplingOptions
from octavo.structured import StructuredOutput
from octavo.v1 import inference_pb2

PROMPT = inference_pb2.Prompt(text="x")


def test_unset_arguments_stay_unset_in_the_message() -> None:
    message = generation_message(PROMPT, params=octavo.SamplingParams(), options={})
    assert len(message.request_id) == 32
    message.request_id = ""
    assert message == inference_pb2.Generation(prompt=PROMPT)


def test_every_option_reaches_its_field() -> None:
    options = RequestOptions(
        request_id="me",
        model="m",
        temperature=0.0,
        top_k=0,
        top_p=0.0,
        min_p=0.0,
        seed=2**64 - 1,
        n=2,
        repetition_penalty=1.5,
        frequency_penalty=0.0,
        presence_penalty=-1.0,
        logit_bias={3: 0.0},
        allowed_token_ids=[5],
        bad_words=["x"],
        max_tokens=5,
        min_tokens=0,
        stop=["a", "b"],
        stop_token_ids=[1, 2],
        include_stop=False,
        ignore_eos=True,
        time_limit_s=1.5,
        skip_special_tokens=False,
        stream_interval=3,
        top_logprobs=0,
        logprob_token_ids=[6],
        prompt_top_logprobs=0,
        echo=True,
        structured_output=StructuredOutput(regex="a+"),
        split_reasoning=True,
        parse_tool_calls=False,
        max_prompt_tokens=7,
        truncation="right",
        priority=-2,
        keep_for_s=0.0,
        skip_cache_read=True,
        skip_cache_store=False,
    )
    assert set(options) == set(get_type_hints(RequestOptions))
    assert generation_message(PROMPT, params=None, options=options) == inference_pb2.Generation(
        request_id="me",
        model="m",
        prompt=inference_pb2.Prompt(
            text="x",
            truncation=inference_pb2.Truncation(
                max_tokens=7, side=inference_pb2.TRUNCATION_SIDE_RIGHT
            ),
        ),
        sampling=inference_pb2.SamplingParams(
            temperature=0.0,
            top_k=0,
            top_p=0.0,
            min_p=0.0,
            seed=2**64 - 1,
            n=2,
            repetition_penalty=1.5,
            frequency_penalty=0.0,
            presence_penalty=-1.0,
            logit_bias={3: 0.0},
            allowed_token_ids=[5],
            bad_words=["x"],
        ),
        stopping=inference_pb2.StoppingParams(
            max_tokens=5,
            min_tokens=0,
            stop=["a", "b"],
            stop_token_ids=[1, 2],
            include_stop=False,
            ignore_eos=True,
            time_limit_s=1.5,
        ),
        output=inference_pb2.OutputParams(
            skip_special_tokens=False,
            stream_interval=3,
            top_logprobs=0,
            logprob_token_ids=[6],
            prompt_top_logprobs=0,
            echo=True,
            split_reasoning=True,
            parse_tool_calls=False,
        ),
        structured_output=inference_pb2.StructuredOutput(regex="a+"),
        scheduling=inference_pb2.SchedulingParams(
            priority=-2, keep_for_s=0.0, skip_cache_read=True, skip_cache_store=False
        ),
    )


def test_every_field_of_the_contract_has_an_option() -> None:
    messages = (
        inference_pb2.SamplingParams,
        inference_pb2.StoppingParams,
        inference_pb2.OutputParams,
        inference_pb2.SchedulingParams,
    )
    fields = {field.name for message in messages for field in message.DESCRIPTOR.fields}
    elsewhere = {
        "request_id",
        "model",
        "max_prompt_tokens",
        "structured_output",
        "truncation",
    }
    assert fields == set(get_type_hints(RequestOptions)) - elsewhere


def test_sampling_params_and_keyword_arguments_name_the_same_fields() -> None:
    assert set(get_type_hints(SamplingOptions)) == set(octavo.SamplingParams.__slots__)


def test_keyword_arguments_go_before_params() -> None:
    params = octavo.SamplingParams(temperature=1.0, top_k=5, stop="end")
    message = generation_message(PROMPT, params=params, options={"temperature": 0.0})
    assert message.sampling == inference_pb2.SamplingParams(temperature=0.0, top_k=5)
    assert list(message.stopping.stop) == ["end"]


def test_params_with_the_same_values_are_equal_and_cannot_change() -> None:
    params = octavo.SamplingParams(stop="a", stop_token_ids=[1])
    assert params == octavo.SamplingParams(stop=["a"], stop_token_ids=(1,))
    assert hash(params) == hash(octavo.SamplingParams(stop=("a",), stop_token_ids=[1]))
    with pytest.raises(AttributeError):
        params.seed = 1  # type: ignore[misc]


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match="temprature"):
        generation_message(PROMPT, params=None, options={"temprature": 1})  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", "many"),
        ("top_k", 2**31),
        ("seed", -1),
        ("max_tokens", 1.5),
        ("stop", [1]),
        ("stop_token_ids", 7),
        ("temperature", "hot"),
    ],
)
def test_a_value_that_the_field_cannot_hold_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(octavo.InvalidRequest) as caught:
        generation_message(PROMPT, params=None, options={name: value})  # type: ignore[misc]
    assert caught.value.violations[0].field == name


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content"),
        ([octavo.Message("user", "a"), {"content": "b"}], "messages[1].role"),
        ([{"role": "user", "content": "a", "names": "b"}], "messages[0].names"),
        ([{"role": "user", "content": "a", "name": 1}], "messages[0].name"),
        ([{"role": "a", "tool_calls": ["x"]}], "messages[0].tool_calls[0]"),
        (
            [{"role": "a", "tool_calls": [{"function": {"name": None}}]}],
            "messages[0].tool_calls[0].name",
        ),
        ([{"role": "user", "content": "a"}, "b"], "messages[1]"),
    ],
)
def test_a_message_that_cannot_be_sent_is_named(messages: Any, field: str) -> None:
    with pytest.raises(octavo.InvalidRequest) as caught:
        chat_prompt(messages, {})
    assert caught.value.violations[0].field == field


@pytest.mark.parametrize("prompt", [b"bytes", ["text"], 7, [2**31], {"text": "a"}, {"prompt": 1}])
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(octavo.InvalidRequest, match="prompt"):
        plain_prompt(prompt)


def test_exactly_one_of_prompt_and_messages_is_needed() -> None:
    with pytest.raises(octavo.InvalidRequest, match="either"):
        any_prompt(None, None, {})
    with pytest.raises(octavo.InvalidRequest, match="either"):
        any_prompt("a", "b", {})


def test_template_options_need_a_conversation() -> None:
    with pytest.raises(octavo.InvalidRequest, match="template_kwargs"):
        any_prompt("a", None, {"template_kwargs": {}})


def test_template_options_reach_the_chat() -> None:
    options = ChatOptions(
        template_kwargs={"enable_thinking": False}, continue_final_message=True, seed=1
    )
    request, template = split_chat_options(options)
    chat = chat_prompt("a", template).chat
    assert request == {"seed": 1}
    assert chat.template_kwargs["enable_thinking"] is False
    assert chat.continue_final_message
    assert not chat.HasField("add_generation_prompt")


def test_template_values_must_be_json() -> None:
    with pytest.raises(octavo.InvalidRequest, match="template_kwargs"):
        chat_prompt("a", {"template_kwargs": {"x": object()}})


def test_a_conversation_with_calls_reaches_the_message_in_either_spelling() -> None:
    call = octavo.ToolCall(id="c1", name="f", arguments_json='{"a": 1}')
    as_dict = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    as_text = {"id": "c1", "name": "f", "arguments": '{"a": 1}'}
    made = [
        chat_prompt(
            [
                octavo.Message("assistant", tool_calls=[call], reasoning="hm"),
                octavo.Message("tool", "2", tool_call_id="c1", name="f"),
            ],
            {},
        ),
        *(
            chat_prompt(
                [
                    {"role": "assistant", "reasoning_content": "hm", "tool_calls": [one]},
                    {"role": "tool", "content": "2", "tool_call_id": "c1", "name": "f"},
                ],
                {},
            )
            for one in (as_dict, as_text)
        ),
    ]
    expected = inference_pb2.Chat(
        messages=[
            inference_pb2.ChatMessage(
                role="assistant",
                reasoning="hm",
                tool_calls=[inference_pb2.ToolCall(id="c1", name="f", arguments_json='{"a": 1}')],
            ),
            inference_pb2.ChatMessage(role="tool", content="2", tool_call_id="c1", name="f"),
        ]
    )
    assert [one.chat for one in made] == [expected] * 3


def test_tools_and_documents_reach_the_message_with_their_order_of_keys() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}}}
    flat = {"name": "f", "description": "d", "parameters": schema}
    prompts = [
        chat_prompt("hi", {"tools": [tool], "documents": [{"title": "T", "text": "D"}]})
        for tool in (
            octavo.Tool(name="f", description="d", parameters=schema),
            flat,
            {"type": "function", "function": flat},
        )
    ]
    for prompt in prompts:
        [tool] = prompt.chat.tools
        assert (tool.name, tool.description) == ("f", "d")
        assert tool.parameters_json == '{"type": "object", "properties": {"z": {}, "a": {}}}'
        assert list(prompt.chat.documents) == [inference_pb2.Document(title="T", text="D")]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [{"name": "f", "strict": True}]}, "tools[0].strict"),
        ({"tools": [{"name": "f", "parameters": {"x": float("nan")}}]}, "tools[0].parameters"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"documents": [{"text": 5}]}, "documents[0].text"),
    ],
)
def test_a_tool_or_document_that_cannot_be_sent_is_named(options: Any, field: str) -> None:
    with pytest.raises(octavo.InvalidRequest) as caught:
        chat_prompt("hi", options)
    assert caught.value.violations[0].field == field
