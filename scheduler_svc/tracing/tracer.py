"""Makes OpenTelemetry spans of what a frontend tells of its calls. Knows no exporter.

The caller's context comes from the call's metadata, in the formats of OTEL_PROPAGATORS (W3C unless
set), and whether a call is sampled is decided once, at its arrival. Times are seconds on the
frontend's clock.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from opentelemetry import propagate
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context

from octavo.installed import installed_version
from scheduler_svc.frontend.span import Attributes, Phase

_SERVICE = "octavo.v1.InferenceService"
# codes that are the service's own fault; what a client did wrong is no error of a server's span
_FAULTS = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})


class OpenTelemetryTracer:
    """Begins the span of each call."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("octavo", installed_version())

    def begin(
        self, *, method: str, metadata: Mapping[str, str | bytes], now: float
    ) -> OpenTelemetrySpan | None:
        """The span of a call that arrived now; None when it is not sampled."""
        carrier = {key: value for key, value in metadata.items() if isinstance(value, str)}
        unix_offset_ns = time.time_ns() - int(now * 1e9)
        span = self._tracer.start_span(
            f"{_SERVICE}/{method}",
            context=propagate.extract(carrier),
            kind=SpanKind.SERVER,
            start_time=unix_offset_ns + int(now * 1e9),
            attributes={"rpc.system": "grpc", "rpc.service": _SERVICE, "rpc.method": method},
        )
        if not span.is_recording():
            return None
        return OpenTelemetrySpan(self, span, unix_offset_ns=unix_offset_ns)

    def add_phase(self, parent: Span, phase: Phase, *, unix_offset_ns: int) -> None:
        """A child of `parent` that is over."""
        child = self._tracer.start_span(
            phase.name,
            context=set_span_in_context(parent),
            start_time=unix_offset_ns + int(phase.begins_at * 1e9),
            attributes=phase.attributes,
        )
        child.end(unix_offset_ns + int(phase.ends_at * 1e9))

    def close(self) -> None:
        """Exports what is left; may take as long as the exporter's own limit."""
        self._provider.shutdown()


class OpenTelemetrySpan:
    """A sampled call in progress."""

    def __init__(self, tracer: OpenTelemetryTracer, span: Span, *, unix_offset_ns: int) -> None:
        self._tracer = tracer
        self._span = span
        self._unix_offset_ns = unix_offset_ns

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits, as tracing systems show it."""
        return f"{self._span.get_span_context().trace_id:032x}"

    def end(
        self,
        *,
        code: str,
        code_number: int,
        reason: str,
        attributes: Attributes,
        phases: Sequence[Phase],
        now: float,
    ) -> None:
        """The call ended now; its phases become children."""
        for phase in phases:
            self._tracer.add_phase(self._span, phase, unix_offset_ns=self._unix_offset_ns)
        self._span.set_attributes(attributes)
        self._span.set_attribute("rpc.grpc.status_code", code_number)
        if reason:
            self._span.set_attribute("octavo.reason", reason)
        if code in _FAULTS:
            self._span.set_status(Status(StatusCode.ERROR, reason or code))
        self._span.end(self._unix_offset_ns + int(now * 1e9))
