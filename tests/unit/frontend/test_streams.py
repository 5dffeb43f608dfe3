"""Streams of one frontend over real gRPC against a scripted core."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
import pytest

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from tests.fakes.byte_tokenizer import END_ID
from tests.unit.frontend.conftest import MODEL, REPLICA, Service
from tests.unit.frontend.stream_reader import Reader, generation


async def test_text_streams_with_its_ids_and_ends_with_the_length(service: Service) -> None:
    core, text = service.core, "héllo wörld"
    ids = service.ids(text)
    reader = Reader(service.stub, generation("hi", seed=5, max_tokens=len(ids)))
    submit = await core.expect("submit")
    assert (submit.num_outputs, submit.max_tokens, submit.sampling.seed) == (1, len(ids), 5)
    await core.accept(submit, max_tokens=len(ids))
    await core.started(submit.number, num_cached_tokens=1)
    for index, token in enumerate(ids[:-1]):
        await core.deliver(submit.number, [token], first=index)
    await core.deliver(submit.number, ids[-1:], first=len(ids) - 1, end=engine.END_REASON_LENGTH)
    await reader.read_all()
    finish = await core.expect("finish")

    assert reader.texts == [text]
    assert reader.ids == [ids]
    assert reader.finishes[0].reason == api.FINISH_REASON_LENGTH
    assert reader.finishes[0].num_tokens == len(ids)
    assert reader.headers["octavo-request-id"] == submit.request_id
    assert reader.headers["octavo-replica"] == REPLICA
    start = reader.chunks[0].start
    assert (start.seed, start.model, start.replica, start.max_tokens) == (
        5,
        MODEL,
        REPLICA,
        len(ids),
    )
    usage = reader.chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (2, len(ids), 1)
    assert (finish.number, finish.num_tokens, finish.reason) == (
        submit.number,
        len(ids),
        engine.END_REASON_LENGTH,
    )
    assert core.gaps == []
