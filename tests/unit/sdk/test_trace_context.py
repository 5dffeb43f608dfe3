"""The caller's trace goes with each call, where the caller traces at all."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import grpc
from opentelemetry.sdk.trace import TracerProvider

from octavo import AsyncClient, Client
from tests.fakes.inference_server import FakeInferenceServer, Refusal

TRACER = TracerProvider(shutdown_on_exit=False).get_tracer("test")


def test_each_call_of_a_stream_carries_the_trace_it_was_begun_in(
    server: FakeInferenceServer,
) -> None:
    """Also the call that goes on after the connection broke, made when the span is over."""
    server.refusals.append(Refusal(code=grpc.StatusCode.UNAVAILABLE, after_chunks=1, is_bare=True))
    with Client(server.target) as client:
        with TRACER.start_as_current_span("ask") as span:
            stream = client.stream("one two three")
        assert stream.result().text
    parents = [str(sent["traceparent"]) for sent in server.metadata]
    trace_id = f"{span.get_span_context().trace_id:032x}"
    assert len(parents) == 2
    assert {parent.split("-")[1] for parent in parents} == {trace_id}


def test_whole_answers_carry_it_with_blocking_and_asyncio_clients(
    server: FakeInferenceServer,
) -> None:
    async def ask() -> None:
        async with AsyncClient(server.target) as client:
            await client.generate("one")

    with TRACER.start_as_current_span("ask") as span:
        with Client(server.target) as client:
            client.generate("one")
        asyncio.run(ask())
    trace_id = f"{span.get_span_context().trace_id:032x}"
    assert [str(sent["traceparent"]).split("-")[1] for sent in server.metadata] == [trace_id] * 2


def test_a_call_outside_of_any_span_carries_none(server: FakeInferenceServer) -> None:
    with Client(server.target) as client:
        client.generate("one")
    assert [sent for sent in server.metadata if "traceparent" in sent] == []


def test_a_program_that_does_not_trace_never_loads_the_library(
    server: FakeInferenceServer,
) -> None:
    program = (
        "import sys, octavo\n"
        "with octavo.Client(sys.argv[1]) as client: client.generate('one')\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, server.target], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
