"""Rows of named numbers as text and as JSON. Knows nothing of what they mean."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

Row = Mapping[str, float | str]


def as_text(rows: Sequence[Row]) -> str:
    """A table with a line for each name and a column for each row; names are the first one's."""
    names = list(rows[0])
    cells = [[name, *(_cell(row[name]) for row in rows)] for name in names]
    widths = [max(len(line[column]) for line in cells) for column in range(len(rows) + 1)]
    lines = []
    for line in cells:
        texts = [line[0].ljust(widths[0])]
        texts += [text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True)]
        lines.append("  ".join(texts).rstrip())
    return "\n".join(lines)


def write_json(rows: Sequence[Row], path: Path) -> None:
    """The rows as a JSON list of objects."""
    path.write_text(json.dumps([dict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


def _cell(value: float | str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) or value == round(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3f}"
