"""Markers by folder, hypothesis profiles, the long parts. Knows nothing of the code under test."""

import os
from pathlib import Path

import hypothesis
import pytest

TESTS = Path(__file__).parent
FOLDER_MARKERS = ("model", "e2e", "chaos", "chart", "gpu")

# Derandomized: a failure seen once is seen by everybody. The long profile looks further each time.
hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=100)
hypothesis.settings.register_profile("long", deadline=None, max_examples=5_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --long PART, the only way to run a test marked long, and what chaos can repeat."""
    parser.addoption("--long", metavar="PART", help="run only the tests marked long(PART)")
    parser.addoption("--chaos-seed", type=int, default=0, help="which blows fall")
    parser.addoption("--chaos-round", type=int, help="only this round of the long part chaos")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks tests by their folder, and chooses between the everyday and one long part."""
    for item in items:
        mark_by_nature(item)
    part = config.getoption("--long")
    wanted = [item for item in items if long_part(item) == part]
    unwanted = [item for item in items if long_part(item) != part]
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = wanted


def mark_by_nature(item: pytest.Item) -> None:
    """A test in tests/model is a model test; a hypothesis test is a property test."""
    folder = item.path.relative_to(TESTS).parts[0]
    if folder in FOLDER_MARKERS:
        item.add_marker(folder)
    if isinstance(item, pytest.Function) and getattr(item.obj, "is_hypothesis_test", False):
        item.add_marker("property")


def long_part(item: pytest.Item) -> str | None:
    """The part a long test belongs to, None for an everyday test."""
    marker = item.get_closest_marker("long")
    return marker.args[0] if marker else None
