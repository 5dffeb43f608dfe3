"""The operating guide and the runbook: what they name exists. Knows nothing of their advice."""

import argparse
import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from octavo.cli.main import command_parser
from scheduler_svc.config import ServiceConfig, flag_name
from tests.operations.conftest import ROOT
from tests.operations.expressions import exposed_series, metrics_in

DOCS = ROOT / "docs"
GUIDES = [DOCS / name for name in ("operations.md", "runbook.md")]
VALUES = yaml.safe_load((ROOT / "helm/octavo/values.yaml").read_text())
# channel options, messages, attributes of spans, our own modules
_OTHER_NAMES = ("grpc.", "octavo.", "gen_ai.", "scheduler_svc.", "worker_svc.")
each_guide = pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)


def anchors(page: Path) -> set[str]:
    """The places of a page that a link can lead to."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    """The flags of a command and of all its subcommands."""
    found: set[str] = set()
    for action in parser._actions:
        found |= set(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                found |= flags_of(command)
    return found


@each_guide
def test_it_names_only_metrics_that_exist(guide: Path) -> None:
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exposed_series()}
    assert metrics_in(guide.read_text()) <= exposed_series() | families


@each_guide
def test_it_names_only_flags_that_exist(guide: Path) -> None:
    known = {flag_name(setting) for setting in dataclasses.fields(ServiceConfig)}
    known |= flags_of(command_parser())
    named = set(re.findall(r"`(--[a-z-]+)", guide.read_text())) - {"--previous"}  # kubectl's
    assert named
    assert named <= known


@each_guide
def test_it_names_only_values_of_the_chart_that_exist(guide: Path) -> None:
    dotted = set(re.findall(r"`([a-z]\w*(?:\.\w+)+)`", guide.read_text()))
    named = {path for path in dotted if not path.startswith(_OTHER_NAMES)}
    assert named
    for path in named:
        place = VALUES
        for name in path.split("."):
            assert name in place, path
            place = place[name]


@each_guide
def test_its_links_lead_somewhere(guide: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", guide.read_text())
    for link in links:
        name, _, anchor = link.partition("#")
        page = guide.parent / name if name else guide
        assert page.exists(), link
        assert not anchor or anchor in anchors(page), link
