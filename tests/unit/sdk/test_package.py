"""The package's face: names load when they are used, targets are checked."""

import json
import subprocess
import sys
from importlib import import_module

import pytest

import octavo
from octavo.channel import checked_target, checked_targets, client_settings
from octavo.models.errors import ModelNotFound

VALUE_NAMES = (
    "SamplingParams",
    "Generation",
    "RetryPolicy",
    "ReconnectPolicy",
    "OctavoError",
    "__version__",
)


def test_every_public_name_is_where_the_package_says() -> None:
    assert sorted(octavo.__all__) == octavo.__all__
    for name in octavo.__all__:
        assert getattr(octavo, name) is not None
        assert name in dir(octavo)
    assert octavo.Client is import_module("octavo.client").Client


def test_a_model_that_is_not_there_is_an_error_of_this_package() -> None:
    assert issubclass(ModelNotFound, octavo.OctavoError)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="LLM"):
        octavo.LLM  # noqa: B018


@pytest.mark.parametrize("name", VALUE_NAMES)
def test_values_and_errors_load_no_grpc(name: str) -> None:
    program = f"import json, sys, octavo; octavo.{name}; print(json.dumps(sorted(sys.modules)))"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert not {"grpc", "google.protobuf"} & set(json.loads(output))


@pytest.mark.parametrize(
    "target",
    ["localhost:50051", "10.0.0.1:1", "[::1]:50051", "unix:/run/a.sock", "dns:///octavo:50051"],
)
def test_what_grpc_dials_is_a_target(target: str) -> None:
    assert checked_target(target) == target


@pytest.mark.parametrize(
    ("target", "advice"),
    [
        ("", "host:port"),
        ("localhost", "host:port"),
        ("http://localhost:50051", "no http://"),
        ("https://api.example.org", "credentials="),
        ("/run/a.sock", "write unix:/run/a.sock"),
        ("host:port", "host:port"),
        ("::1:50051", "host:port"),
    ],
)
def test_what_grpc_cannot_dial_is_refused_with_advice(target: str, advice: str) -> None:
    with pytest.raises(octavo.InvalidTarget, match="target") as caught:
        checked_target(target)
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("target", "targets"),
    [
        ("a:1", ("a:1",)),
        ("a:1, b:2,a:1", ("a:1", "b:2")),
        (["a:1", "unix:/run/a,b.sock"], ("a:1", "unix:/run/a,b.sock")),
        ("ipv4:10.0.0.1:1,10.0.0.2:1", ("ipv4:10.0.0.1:1,10.0.0.2:1",)),
    ],
)
def test_several_targets_are_a_list_or_a_text_with_commas(
    target: str | list[str], targets: tuple[str, ...]
) -> None:
    assert checked_targets(target) == targets


@pytest.mark.parametrize("target", [[], "", "a:1,", ["a:1", "b"]])
def test_each_of_several_targets_is_checked(target: str | list[str]) -> None:
    with pytest.raises(octavo.InvalidTarget, match="target"):
        checked_targets(target)


def test_channel_options_of_the_caller_go_before_the_clients_own() -> None:
    settings = client_settings("a:1", channel_options=[("grpc.keepalive_time_ms", 15_000)])
    options = dict(settings.options)
    assert options["grpc.keepalive_time_ms"] == 15_000
    assert options["grpc.use_local_subchannel_pool"] == 1
    assert len(options) == len(settings.options)
