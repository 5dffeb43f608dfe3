"""Tokenize, Detokenize and GetModelInfo; long texts leave the loop free."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.protobuf import struct_pb2

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.model import ServedModel, load_served_model
from scheduler_svc.frontend.text.errors import TokenizerFileInvalid
from tests.fakes.byte_tokenizer import END_ID, NUM_IDS, START_ID
from tests.unit.frontend.frontend_service import MODEL, REPLICA, Service, write_model
from tests.unit.frontend.stream_reader import Reader, Refusal, generation


async def test_text_and_ids_go_both_ways(service: Service) -> None:
    text = "Grüße, 世界"
    there = await service.stub.Tokenize(api.TokenizeRequest(prompt=api.Prompt(text=text)))
    assert there.text == text
    assert list(there.token_ids) == service.ids(text)
    back = await service.stub.Detokenize(api.DetokenizeRequest(token_ids=there.token_ids))
    assert back.text == text


async def test_a_chat_is_tokenized_through_its_template(service: Service) -> None:
    chat = api.Chat(messages=[api.ChatMessage(role="user", content="")])
    answer = await service.stub.Tokenize(api.TokenizeRequest(prompt=api.Prompt(chat=chat)))
    assert answer.text == "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"
    assert answer.token_ids[0] == START_ID
    chat.continue_final_message = True
    chat.messages[0].content = "Once"
    answer = await service.stub.Tokenize(api.TokenizeRequest(prompt=api.Prompt(chat=chat)))
    assert answer.text == "<|im_start|>user\nOnce"


async def test_special_tokens_are_left_out_unless_wanted(service: Service) -> None:
    ids = [*service.ids("a"), END_ID]
    shown = api.DetokenizeRequest(token_ids=ids, skip_special_tokens=False)
    assert (await service.stub.Detokenize(shown)).text == "a<|im_end|>"
    hidden = api.DetokenizeRequest(token_ids=ids)
    assert (await service.stub.Detokenize(hidden)).text == "a"


@pytest.mark.parametrize("bad", [-1, 288, 2**31 - 1])
async def test_ids_outside_the_vocabulary_are_named(service: Service, bad: int) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.stub.Detokenize(api.DetokenizeRequest(token_ids=[1, bad]))
    refusal = Refusal(caught.value)
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.fields == ["token_ids[1]"]


async def test_ids_without_a_text_are_accepted_back(service: Service) -> None:
    """Rows of the vocabulary beyond the tokenizer: what we could produce, we take."""
    request = api.DetokenizeRequest(token_ids=[*service.ids("a"), NUM_IDS + 1])
    assert (await service.stub.Detokenize(request)).text == "a"
    reader = Reader(service.stub, generation([NUM_IDS + 1, 5]))
    assert (await service.core.expect("submit")).number == 1
    reader.call.cancel()


async def test_model_info_tells_limits_and_defaults(service: Service) -> None:
    info = await service.stub.GetModelInfo(api.GetModelInfoRequest())
    assert (info.model, info.architecture, info.replica) == (MODEL, "LlamaForCausalLM", REPLICA)
    assert (info.max_sequence_tokens, info.vocab_size) == (200, 288)
    assert info.num_tokenizer_ids == NUM_IDS
    assert list(info.eos_token_ids) == [END_ID]
    assert info.has_chat_template
    assert info.default_sampling.temperature == 1.0
    assert info.max_outputs == 16
    assert info.version


async def test_unread_template_variables_are_told(service: Service) -> None:
    kwargs = struct_pb2.Struct()
    kwargs.update({"enable_thinking": False})
    chat = api.Chat(messages=[api.ChatMessage(role="user", content="hi")], template_kwargs=kwargs)
    reader = Reader(service.stub, api.Generation(prompt=api.Prompt(chat=chat)))
    submit = await service.core.expect("submit")
    await service.core.accept(submit)
    await service.core.deliver(submit.number, service.ids("x"), end=engine.END_REASON_LENGTH)
    await reader.read_all()
    [warning] = reader.chunks[0].start.warnings
    assert "enable_thinking" in warning


async def test_a_long_text_does_not_hold_up_other_calls(service: Service) -> None:
    service.core.status.max_sequence_tokens = 1_000_000
    await service.until(lambda: service.services.link.status.max_sequence_tokens == 1_000_000)
    text = "word " * 200_000
    ended = []

    async def tokenize() -> None:
        answer = await service.stub.Tokenize(api.TokenizeRequest(prompt=api.Prompt(text=text)))
        assert len(answer.token_ids) == len(text)
        ended.append("long")

    async def ask() -> None:
        await service.until(lambda: service.services.calls.num_open)
        await service.stub.GetModelInfo(api.GetModelInfoRequest())
        ended.append("short")

    await asyncio.gather(tokenize(), ask())
    assert ended == ["short", "long"]


async def test_a_huge_text_is_refused_before_it_is_tokenized(service: Service) -> None:
    text = "x" * (128 * 200 + 1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.stub.Tokenize(api.TokenizeRequest(prompt=api.Prompt(text=text)))
    refusal = Refusal(caught.value)
    assert refusal.fields == ["prompt"]
    assert "at most 25600 bytes" in refusal.bad_request.field_violations[0].description


def test_defaults_come_from_the_generation_config(tmp_path: Path) -> None:
    write_model(tmp_path, temperature=0.6, top_k=20, top_p=0.95, min_p=None)
    sampling = load_served_model(tmp_path, name="m").default_sampling
    assert (sampling.temperature, sampling.top_k) == (0.6, 20)
    assert (sampling.top_p, sampling.min_p) == (0.95, 0.0)


@pytest.mark.parametrize("value", [-1, float("nan"), "hot", 1000])
def test_a_generation_config_out_of_range_names_file_and_key(tmp_path: Path, value: object) -> None:
    write_model(tmp_path, temperature=value)
    with pytest.raises(TokenizerFileInvalid, match=r"generation_config.json: temperature must be"):
        load_served_model(tmp_path, name="m")


def test_a_model_without_a_vocabulary_size_names_file_and_key(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(TokenizerFileInvalid, match=r"config.json: vocab_size must be"):
        load_served_model(tmp_path, name="m")


def test_the_model_fixture_is_what_the_tests_assume(model: ServedModel) -> None:
    assert model.tokenizer.encode("ab") != model.tokenizer.encode("ba")
    assert len(model.tokenizer.encode("€")) == 3
