"""The spans of calls over real gRPC, and what a frontend does without tracing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from itertools import pairwise
from pathlib import Path

import grpc.aio
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.model import ServedModel
from scheduler_svc.tracing.tracer import OpenTelemetryTracer
from tests.unit.frontend.frontend_service import MODEL, Service, running_service
from tests.unit.frontend.scripted_core import output
from tests.unit.frontend.stream_reader import Reader, generation, refusal_of

SECRET_PROMPT, SECRET_ANSWER = "Heliotrope", "Xylophone"
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = [("traceparent", f"00-{TRACE_ID}-{SPAN_ID}-01")]
UNSAMPLED = [("traceparent", f"00-{TRACE_ID}-{SPAN_ID}-00")]


class Traced:
    """A service, and what it exported."""

    def __init__(self, service: Service, exporter: InMemorySpanExporter) -> None:
        self.service = service
        self._exporter = exporter

    async def spans(self) -> dict[str, ReadableSpan]:
        """By name, once no call is open."""
        await self.service.until(lambda: self.service.services.calls.num_open == 0)
        return {span.name: span for span in self._exporter.get_finished_spans()}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
async def traced(
    model: ServedModel, run_dir: Path, exporter: InMemorySpanExporter
) -> AsyncIterator[Traced]:
    """Traces whatever has no parent or a sampled one."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = OpenTelemetryTracer(provider)
    async with running_service(model, run_dir, tracer=tracer) as service:
        yield Traced(service, exporter)


def facts(span: ReadableSpan) -> Mapping[str, object]:
    return dict(span.attributes or {})


async def finished(
    service: Service, wanted: api.Generation, text: str, metadata: list[tuple[str, str]]
) -> None:
    """A request that waits, begins, and runs to its end in two deliveries."""
    reader = Reader(service.stub, wanted, metadata=metadata)
    submit = await service.core.expect("submit")
    await service.core.accept(submit)
    await service.core.started(submit.number, num_cached_tokens=4)
    ids = service.ids(text)
    await service.core.deliver(submit.number, ids[:3])
    await reader.read_one()
    await service.core.deliver(submit.number, ids[3:], first=3, end=engine.END_REASON_LENGTH)
    await reader.read_all()
    await service.core.expect("finish")


async def test_a_request_is_a_span_with_its_phases_in_the_callers_trace(traced: Traced) -> None:
    await finished(traced.service, generation("hello", request_id="mine"), "answer", SAMPLED)
    spans = await traced.spans()
    root = spans.pop("octavo.v1.InferenceService/Generate")
    assert root.kind is SpanKind.SERVER
    assert root.parent is not None
    assert f"{root.context.trace_id:032x}" == TRACE_ID
    assert f"{root.parent.span_id:016x}" == SPAN_ID
    expected = {
        "rpc.system": "grpc",
        "rpc.method": "Generate",
        "rpc.grpc.status_code": 0,
        "octavo.request_id": "mine",
        "octavo.tenant": "default",
        "gen_ai.request.model": MODEL,
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.response.finish_reasons": ("length",),
        "octavo.num_continued": 0,
    }
    assert facts(root).items() >= expected.items()
    assert set(spans) == {"tokenize", "queue", "prefill", "decode", "detokenize"}
    for span in spans.values():
        assert span.parent is not None
        assert span.parent.span_id == root.context.span_id
    assert facts(spans["decode"]) == {"octavo.num_tokens": 6}
    assert facts(spans["prefill"]) == {"octavo.num_cached_tokens": 4}


async def test_phases_lie_inside_the_call_in_their_order(traced: Traced) -> None:
    await finished(traced.service, generation("hello"), "answer", [])
    spans = await traced.spans()
    root = spans["octavo.v1.InferenceService/Generate"]
    times = [root.start_time or 0]
    for name in ("tokenize", "queue", "prefill", "decode"):
        times += [spans[name].start_time or 0, spans[name].end_time or 0]
    times.append(root.end_time or 0)
    slack_ns = 1000  # the clocks meet in floating point
    assert all(a <= b + slack_ns for a, b in pairwise(times)), times
    text = spans["detokenize"]
    assert (root.start_time or 0) <= (text.start_time or 0) <= (text.end_time or 0)
    assert facts(text)["octavo.busy_s"] > 0  # type: ignore[operator]  # a number


async def test_the_caller_decides_whether_its_call_is_sampled(traced: Traced) -> None:
    await finished(traced.service, generation("hello"), "answer", UNSAMPLED)
    assert await traced.spans() == {}


async def test_a_sampler_that_says_no_is_asked_only_without_a_parent(
    model: ServedModel, run_dir: Path, exporter: InMemorySpanExporter
) -> None:
    provider = TracerProvider(sampler=ParentBased(ALWAYS_OFF), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = OpenTelemetryTracer(provider)
    async with running_service(model, run_dir, tracer=tracer) as service:
        await finished(service, generation("hello"), "answer", [])
        await finished(service, generation("hello"), "answer", SAMPLED)
        spans = await Traced(service, exporter).spans()
    assert len(spans) == 6


async def test_a_refused_call_says_why_and_is_no_error_of_the_service(traced: Traced) -> None:
    await refusal_of(Reader(traced.service.stub, generation(request_id="!" * 5000)))
    spans = await traced.spans()
    assert list(spans) == ["octavo.v1.InferenceService/Generate"]
    [root] = spans.values()
    assert facts(root)["octavo.reason"] == "INVALID_REQUEST"
    assert facts(root)["octavo.request_id"] == "!" * 128
    assert root.status.status_code is StatusCode.UNSET


async def test_a_call_that_waits_when_its_client_leaves_shows_its_queue(traced: Traced) -> None:
    reader = Reader(traced.service.stub, generation())
    submit = await traced.service.core.expect("submit")
    await traced.service.core.accept(submit)
    await reader.call.initial_metadata()
    reader.call.cancel()
    await traced.service.core.expect("detach")
    spans = await traced.spans()
    assert set(spans) == {"octavo.v1.InferenceService/Generate", "tokenize", "queue"}
    assert facts(spans["octavo.v1.InferenceService/Generate"])["octavo.reason"] == "CLIENT_LEFT"


async def test_a_failure_of_the_service_is_an_error(traced: Traced) -> None:
    reader = Reader(traced.service.stub, generation())
    submit = await traced.service.core.expect("submit")
    await traced.service.core.accept(submit)
    await traced.service.core.deliver(
        submit.number, traced.service.ids("abc"), end=engine.END_REASON_ERROR
    )
    with pytest.raises(grpc.aio.AioRpcError):
        await reader.read_all()
    root = (await traced.spans())["octavo.v1.InferenceService/Generate"]
    assert root.status.status_code is StatusCode.ERROR
    assert facts(root)["rpc.grpc.status_code"] == grpc.StatusCode.INTERNAL.value[0]


async def test_a_stream_that_goes_on_has_no_queue_of_its_own(traced: Traced) -> None:
    core, ids = traced.service.core, traced.service.ids("abcdef")
    attach = Reader(traced.service.stub, api.AttachRequest(request_id="mine"), metadata=SAMPLED)
    number = (await core.expect("attach")).number
    first = Reader(traced.service.stub, generation(request_id="other", seed=1))
    submit = await core.expect("submit")
    submit.request_id = "mine"
    await core.attached(number, submit, [output(ids, end=engine.END_REASON_LENGTH)])
    await attach.read_all()
    first.call.cancel()
    spans = await traced.spans()
    root = spans["octavo.v1.InferenceService/Attach"]
    children = {
        s.name for s in spans.values() if s.parent and s.parent.span_id == root.context.span_id
    }
    assert children == {"decode", "detokenize"}
    assert facts(root)["octavo.num_continued"] == 1


async def test_no_text_of_a_client_or_a_model_is_in_a_span(traced: Traced) -> None:
    await finished(traced.service, generation(SECRET_PROMPT), SECRET_ANSWER, SAMPLED)
    said = "".join(span.to_json() for span in (await traced.spans()).values())
    assert SECRET_PROMPT not in said
    assert SECRET_ANSWER not in said


def test_a_frontend_that_does_not_trace_never_loads_the_library() -> None:
    program = (
        "import sys, scheduler_svc.frontend.process\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
