"""Builds the tracer from the OTEL_* variables of the environment. Knows nothing of calls.

Read by OpenTelemetry itself: OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER and
its argument (parent-based unless set), OTEL_BSP_*, OTEL_EXPORTER_OTLP_*, OTEL_SDK_DISABLED.
"""

from __future__ import annotations

import os
import threading

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from octavo.installed import installed_version
from scheduler_svc.config import InvalidConfig
from scheduler_svc.tracing.tracer import OpenTelemetryTracer

_PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_CLOSE_LIMIT_S = 0.8  # with what a frontend needs besides, less than the supervisor gives it to end


def make_tracer(*, replica: str, process: str) -> OpenTelemetryTracer:
    """A tracer that exports in the background. Raises InvalidConfig naming the variable."""
    provider = TracerProvider(resource=_resource(replica, process), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_exporter()))
    return OpenTelemetryTracer(provider)


def close_tracer(tracer: OpenTelemetryTracer) -> None:
    """Exports what is left, but lets nobody wait for a collector that does not answer."""
    closing = threading.Thread(target=tracer.close, name="tracer-close", daemon=True)
    closing.start()
    closing.join(_CLOSE_LIMIT_S)


def _exporter() -> SpanExporter:
    name = next((name for name in _PROTOCOL_VARIABLES if os.environ.get(name)), "")
    protocol = os.environ.get(name, "grpc")
    if protocol == "grpc":
        return GrpcExporter()
    if protocol == "http/protobuf":
        return HttpExporter()
    raise InvalidConfig(f"{name} must be grpc or http/protobuf, got {protocol!r}")


def _resource(replica: str, process: str) -> Resource:
    ours = {
        "service.name": "octavo",
        "service.version": installed_version(),
        "service.instance.id": f"{replica}/{process}",
    }
    # what the operator set goes before what we say, which goes before the SDK's own "unknown"
    return Resource.create().merge(Resource(ours)).merge(OTELResourceDetector().detect())
