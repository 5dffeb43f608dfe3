"""What is said when a service is to be started where it is not installed."""

import pytest

import octavo
from octavo.service_packages import require_service_packages


@pytest.fixture
def _only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that holds these packages."""
    monkeypatch.setattr(
        "octavo.service_packages.find_spec", lambda name: name if name in request.param else None
    )


SCHEDULER = ("zmq", "tokenizers", "jinja2", "grpc_health", "grpc_reflection", "prometheus_client")
WORKER = ("torch", "safetensors")


@pytest.mark.usefixtures("_only")
@pytest.mark.parametrize(
    ("_only", "extra", "missing"),
    [((), "all", "zmq"), (SCHEDULER, "worker", "torch"), (WORKER, "scheduler", "zmq")],
    indirect=["_only"],
)
def test_the_command_that_installs_it_is_named(extra: str, missing: str) -> None:
    with pytest.raises(octavo.MissingExtra, match="octavo demo") as caught:
        require_service_packages("octavo demo", has_local_workers=True)
    assert f"pip install 'octavo[{extra}]'" in str(caught.value)
    assert missing in str(caught.value)


@pytest.mark.usefixtures("_only")
@pytest.mark.parametrize("_only", [SCHEDULER], indirect=True)
def test_workers_that_come_by_themselves_need_no_torch_here() -> None:
    require_service_packages("octavo serve", has_local_workers=False)


@pytest.mark.usefixtures("_only")
@pytest.mark.parametrize("_only", [(*SCHEDULER, *WORKER)], indirect=True)
def test_a_whole_installation_says_nothing() -> None:
    require_service_packages("octavo serve", has_local_workers=True)
