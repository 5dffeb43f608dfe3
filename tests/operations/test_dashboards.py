"""The Grafana dashboards: every query is valid and asks for what exists; the panels do not overlap.

`make lint` compares the files with tools/dashboard_pages.py.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.operations.conftest import FILES, promtool
from tests.operations.expressions import exposed_series, labels_of, matchers_in, metrics_in

DASHBOARDS = sorted((FILES / "dashboards").glob("*.json"))
Json = dict[str, Any]


def by_name(path: Path) -> str:
    return path.stem


def load(path: Path) -> Json:
    return dict(json.loads(path.read_text()))


def queries(dashboard: Json) -> list[Json]:
    return [target for panel in dashboard["panels"] for target in panel.get("targets", [])]


def expressions(dashboard: Json) -> list[str]:
    return [target["expr"] for target in queries(dashboard)]


def test_there_is_an_overview_and_one_replica_in_depth() -> None:
    assert [path.stem for path in DASHBOARDS] == ["overview", "replica"]
    assert len({load(path)["uid"] for path in DASHBOARDS}) == 2


@pytest.mark.parametrize("path", DASHBOARDS, ids=by_name)
def test_every_query_is_valid(path: Path, tmp_path: Path) -> None:
    rules = []
    for index, expression in enumerate(expressions(load(path))):
        filled_in = expression.replace("$__rate_interval", "1m").replace("$instance", "a")
        assert "$" not in filled_in
        rules.append({"record": f"query_{index}", "expr": filled_in})
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = promtool("check", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", DASHBOARDS, ids=by_name)
def test_every_query_reads_series_that_exist_of_the_chosen_replicas(path: Path) -> None:
    for expression in expressions(load(path)):
        assert metrics_in(expression) <= exposed_series(), expression
        for series, label, _ in matchers_in(expression):
            assert label == "instance" or label in labels_of(series), expression
        selected = {series for series, label, _ in matchers_in(expression) if label == "instance"}
        assert selected == metrics_in(expression), expression


@pytest.mark.parametrize("path", DASHBOARDS, ids=by_name)
def test_a_legend_names_labels_that_the_result_has(path: Path) -> None:
    for target in queries(load(path)):
        legend, expression = target["legendFormat"], target["expr"]
        if not legend.startswith("{{"):
            continue
        label = legend[2:].partition("}}")[0]
        is_kept = any(label in labels_of(series) for series in metrics_in(expression))
        assert label == "instance" or is_kept, legend


@pytest.mark.parametrize("path", DASHBOARDS, ids=by_name)
def test_panels_fill_rows_without_overlapping(path: Path) -> None:
    panels = load(path)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in panels):
        columns = range(place["x"], place["x"] + place["w"])
        rows = range(place["y"], place["y"] + place["h"])
        cells = set(itertools.product(columns, rows))
        assert max(columns) < 24
        assert not cells & taken, place
        taken |= cells


@pytest.mark.parametrize("path", DASHBOARDS, ids=by_name)
def test_every_panel_explains_itself(path: Path) -> None:
    for panel in load(path)["panels"]:
        if panel["type"] != "row":
            assert panel["description"], panel["title"]
            assert panel["targets"], panel["title"]
