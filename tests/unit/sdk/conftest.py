"""An echo service and clients of it, for the SDK's tests."""

from collections.abc import Iterator

import pytest

import octavo
from tests.fakes.inference_server import FakeInferenceServer

SOON = octavo.RetryPolicy(max_attempts=3, first_wait_s=0.01)


@pytest.fixture
def server() -> Iterator[FakeInferenceServer]:
    with FakeInferenceServer() as server:
        yield server


@pytest.fixture
def client(server: FakeInferenceServer) -> Iterator[octavo.Client]:
    with octavo.Client(server.target, retry=SOON) as client:
        yield client
