"""Asks for optional Python packages before work starts that would fail without them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from octavo.models.errors import MissingPackage


def require_packages(modules: Sequence[str], *, purpose: str) -> None:
    """Raise `MissingPackage` when any of the top-level `modules` is not installed."""
    missing = tuple(module for module in modules if find_spec(module) is None)
    if missing:
        raise MissingPackage(missing, purpose)
