"""`octavo version`."""

from __future__ import annotations

import argparse
from importlib.metadata import version


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser("version", help="print the version")
    parser.set_defaults(run=_run)


def text() -> str:
    """Name and version, as printed."""
    return f"octavo {version('octavo')}"


def _run(_arguments: argparse.Namespace) -> int:
    print(text())
    return 0
