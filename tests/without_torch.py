"""A pytest plugin: importing torch and its company fails, as on a machine that only schedules.

Loaded with ``-p tests.without_torch``; knows nothing of the tests.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

BLOCKED = frozenset({"torch", "triton", "transformers", "flash_attn"})


class RefuseTensors(MetaPathFinder):
    """Refuses to find the blocked packages, whatever is installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raises for a blocked package; leaves all others to the finders behind it."""
        if fullname.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{fullname} is blocked: these tests run without it")
        return None


def pytest_configure() -> None:
    """Blocks before any test module is imported."""
    loaded = BLOCKED & sys.modules.keys()
    if loaded:
        raise RuntimeError(f"imported before the block could stand: {', '.join(sorted(loaded))}")
    sys.meta_path.insert(0, RefuseTensors())
