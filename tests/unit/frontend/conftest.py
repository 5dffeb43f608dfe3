"""What the frontend's tests share. `frontend_service` builds the service."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from scheduler_svc.frontend.model import ServedModel, load_served_model
from tests.unit.frontend.frontend_service import MODEL, Service, running_service, write_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    loaded = load_served_model(folder, name=MODEL)
    yield loaded
    assert loaded.chat_template is not None
    loaded.chat_template.close()


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A folder with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="octavo-fe-") as folder:
        yield Path(folder)


@pytest.fixture
async def service(model: ServedModel, run_dir: Path) -> AsyncIterator[Service]:
    async with running_service(model, run_dir) as started:
        yield started
