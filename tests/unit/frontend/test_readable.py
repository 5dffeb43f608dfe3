"""Bytes that are no message are refused like any other request that breaks a rule."""

from __future__ import annotations

import logging
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor

from octavo.v1 import inference_pb2 as api
from tests.fakes.hostile_messages import METHODS
from tests.unit.frontend.frontend_service import Service
from tests.unit.frontend.stream_reader import Refusal


async def raw(service: Service, name: str, data: bytes) -> bytes:
    call: Any = service.channel.unary_unary(f"/octavo.v1.InferenceService/{name}")
    answer: bytes = await call(data)
    return answer


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
async def test_what_is_no_message_is_an_invalid_argument_without_a_trace(
    service: Service, method: MethodDescriptor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    name, is_streamed = method.name, method.server_streaming
    path = f"/octavo.v1.InferenceService/{name}"
    make: Any = service.channel.unary_stream if is_streamed else service.channel.unary_unary
    call = make(path)(b"\x0a\xff\xff")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await (call.read() if is_streamed else call)
    refusal = Refusal(raised.value)
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.fields == ["request"]
    assert refusal.info.reason == "INVALID_REQUEST"
    assert name in refusal.text
    assert caplog.records == []


@pytest.mark.parametrize(
    "data",
    [b"\xff\xff\xff", b"\x0a\x0a", b"\x0a\x05\x0a\x03\xff\xfe\xfd"],
    ids=["no field", "cut off", "a text that is not UTF-8"],
)
async def test_every_kind_of_unreadable_bytes_is_refused(service: Service, data: bytes) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await raw(service, "GenerateUnary", data)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_message_with_fields_of_a_later_version_is_served(service: Service) -> None:
    data = api.DetokenizeRequest(token_ids=[64]).SerializeToString() + b"\xfa\x3e\x01x"
    answer = await raw(service, "Detokenize", data)
    assert api.DetokenizeResponse.FromString(answer).text == service.model.tokenizer.decode([64])
