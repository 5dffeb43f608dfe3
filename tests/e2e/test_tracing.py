"""Spans of a replica of real processes, as a collector gets them over OTLP."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider

from octavo import Client
from tests.e2e.replica import running_replica, wait_until
from tests.fakes.checkpoints import make_tiny_checkpoint

PHASES = {"tokenize", "queue", "prefill", "decode", "detokenize"}


class Collector(otlp_grpc.TraceServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self.services: set[str] = set()

    def Export(  # noqa: N802 - the protocol's name
        self, request: otlp.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> otlp.ExportTraceServiceResponse:
        with self._lock:
            for group in request.resource_spans:
                self.services |= {
                    pair.value.string_value
                    for pair in group.resource.attributes
                    if pair.key == "service.name"
                }
                self._spans += [span for scope in group.scope_spans for span in scope.spans]
        return otlp.ExportTraceServiceResponse()

    def named(self, trace_id: bytes) -> dict[str, Span]:
        """The spans of a trace by their names."""
        with self._lock:
            return {span.name: span for span in self._spans if span.trace_id == trace_id}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that the environment's OTEL_* variables name."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    # generated without types
    otlp_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chat-backend")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    try:
        yield collector
    finally:
        server.stop(grace=None).wait()


def test_a_clients_trace_goes_through_the_replica_to_a_collector(
    tmp_path: Path, collector: Collector
) -> None:
    """The SDK hands its context on; the spans join, also those of a client without one."""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    folder = make_tiny_checkpoint(tmp_path, family="qwen3")
    flags = ["--tracing", "--log-format", "json"]
    with running_replica(folder, flags=flags, hash_worker=[]) as replica:
        with (
            Client(replica.target) as client,
            tracer.start_as_current_span("question") as asking,
        ):
            generation = client.generate("hello", max_tokens=12, temperature=0.0, ignore_eos=True)
        context = asking.get_span_context()
        trace_id = context.trace_id.to_bytes(16, "big")
        wait_until(lambda: len(collector.named(trace_id)) == 1 + len(PHASES), limit_s=20)
        assert replica.log().count(f'"trace_id": "{context.trace_id:032x}"') == 1
        assert replica.stop() == 0
    spans = collector.named(trace_id)
    [root] = [span for name, span in spans.items() if name not in PHASES]
    assert root.name == "octavo.v1.InferenceService/Generate"
    assert root.parent_span_id == context.span_id.to_bytes(8, "big")
    assert {spans[name].parent_span_id for name in PHASES} == {root.span_id}
    values = {pair.key: pair.value for pair in root.attributes}
    assert values["octavo.request_id"].string_value == generation.request_id
    assert values["gen_ai.usage.output_tokens"].int_value == 12
    assert collector.services == {"chat-backend"}
