"""The table of values in the chart's README. `make lint` compares the page with the values."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.conftest import CHART
from tools.chart_values import BEGIN, END, values_table, with_values_table

TEXT = """# The head.

pods:
  # how many,
  # in all
  count: 2
  name: ""
  resources: {cpu: "1"}
list: []
"""


def rows(table: str) -> dict[str, list[str]]:
    cells = (line.split(" | ") for line in table.splitlines()[2:])
    return {row[0].strip("| `"): [row[1], row[2].removesuffix(" |")] for row in cells}


def test_a_row_has_a_values_name_default_and_comment() -> None:
    assert rows(values_table(TEXT)) == {
        "pods.count": ["`2`", "how many, in all"],
        "pods.name": ["empty", ""],
        "pods.resources": ["`{cpu: '1'}`", ""],
        "list": ["`[]`", ""],
    }


def test_only_the_marked_part_of_a_page_changes(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("a: 1\n")
    page = with_values_table(f"before\n{BEGIN}\nold\n{END}\nafter\n", values)
    assert page.startswith("before\n")
    assert page.endswith("\nafter\n")
    assert "old" not in page
    with pytest.raises(ValueError, match="lacks the lines"):
        with_values_table("a page without marks", values)


def test_every_value_says_what_it_is() -> None:
    table = rows(values_table((CHART / "values.yaml").read_text()))
    assert [name for name, (_, meaning) in table.items() if not meaning] == []
    assert set(table) == set(paths(yaml.safe_load((CHART / "values.yaml").read_text())))


def paths(values: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name, value in values.items():
        is_whole = name in ("resources", "labels")
        is_leaf = not isinstance(value, dict) or not value or is_whole
        found += [prefix + name] if is_leaf else paths(value, f"{prefix}{name}.")
    return found
