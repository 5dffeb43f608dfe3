"""A world of an engine, ranks and frontends for one test; everything in it ends with the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.engine.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()
