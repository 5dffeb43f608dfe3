"""How OpenTelemetry's own variables shape what is exported."""

from __future__ import annotations

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

from scheduler_svc.config import InvalidConfig, ServiceConfig, checked
from scheduler_svc.tracing import exporter

PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the developer's own."""
    for name in (PROTOCOL, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("protocol", "kind"),
    [("", GrpcExporter), ("grpc", GrpcExporter), ("http/protobuf", HttpExporter)],
)
def test_the_protocol_is_the_operators_choice(
    protocol: str, kind: type[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROTOCOL, protocol)
    made = exporter._exporter()
    assert isinstance(made, kind)
    made.shutdown()


def test_an_unknown_protocol_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROTOCOL, "http/json")
    with pytest.raises(InvalidConfig, match=f"{PROTOCOL} must be grpc or http/protobuf"):
        exporter.make_tracer(replica="r", process="frontend-0")


def test_the_service_has_a_name_that_the_operator_may_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = exporter._resource("replica-1", "frontend-0").attributes
    assert ours["service.name"] == "octavo"
    assert ours["service.instance.id"] == "replica-1/frontend-0"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chat")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    theirs = exporter._resource("replica-1", "frontend-0").attributes
    assert theirs["service.name"] == "chat"
    assert theirs["deployment.environment"] == "test"


def test_the_share_of_sampled_calls_is_the_operators_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    tracer = exporter.make_tracer(replica="r", process="frontend-0")
    assert tracer.begin(method="Generate", metadata={}, now=1.0) is None
    sampled = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    assert tracer.begin(method="Generate", metadata=sampled, now=1.0) is not None
    exporter.close_tracer(tracer)


def test_without_the_extra_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("scheduler_svc.config.find_spec", find_nothing)
    with pytest.raises(InvalidConfig, match=r"--tracing needs .* pip install 'octavo\[tracing\]'"):
        checked(ServiceConfig(tracing=True))
    assert not checked(ServiceConfig()).tracing
