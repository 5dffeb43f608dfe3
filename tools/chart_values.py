"""The table of a chart's values: names, defaults, the comments above them. Knows no template."""

from collections.abc import Iterator
from pathlib import Path

import yaml

BEGIN = "<!-- values: made from values.yaml by `make docs` -->"
END = "<!-- /values -->"
# mappings that a user gives as a whole
_WHOLES = frozenset({"resources"})


def with_values_table(page: str, values: Path) -> str:
    """The page with the table between its two marks made anew."""
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"the page lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{values_table(values.read_text(encoding='utf-8'))}{END}{after}"


def values_table(text: str) -> str:
    """One row for each value that a user sets."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise TypeError("the values are no mapping")
    lines = text.splitlines()
    rows = [
        f"| `{name}` | {_default(node)} | {_comment_above(line, lines)} |\n"
        for name, node, line in _leaves(root)
    ]
    return "".join(["| value | default | what it is |\n", "|---|---|---|\n", *rows])


def _leaves(mapping: yaml.MappingNode, prefix: str = "") -> Iterator[tuple[str, yaml.Node, int]]:
    for key, value in mapping.value:
        name = f"{prefix}{key.value}"
        is_branch = isinstance(value, yaml.MappingNode) and value.value and not value.flow_style
        if is_branch and key.value not in _WHOLES:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value, key.start_mark.line


def _default(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        if node.tag.endswith(":null"):
            return "`null`"
        return f"`{node.value}`" if node.value else "empty"
    value = yaml.safe_load(yaml.serialize(node, Dumper=yaml.SafeDumper))
    return f"`{yaml.safe_dump(value, default_flow_style=True, width=10_000).strip()}`"


def _comment_above(line: int, lines: list[str]) -> str:
    words: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        words.insert(0, lines[line].lstrip(" #"))
    return " ".join(words)
