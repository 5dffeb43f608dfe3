"""What `/metrics` says, as Prometheus's own checker reads it."""

import re

from scheduler_svc.metrics.catalog import CATALOG
from tests.operations.conftest import ROOT, promtool
from tests.operations.expressions import exposed_series


def test_promtool_finds_nothing_to_say_about_any_metric(whole_catalog: str) -> None:
    done = promtool("check", "metrics", stdin=whole_catalog)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_whole_catalog_is_exposed(whole_catalog: str) -> None:
    names = set(re.findall(r"^(octavo_\w+)", whole_catalog, re.MULTILINE))
    assert names == exposed_series()


def test_the_page_of_metrics_lists_them_all() -> None:
    """`make lint` compares its every word with the catalog."""
    page = (ROOT / "docs/metrics.md").read_text()
    assert all(f"`octavo_{name}" in page for name in CATALOG)
