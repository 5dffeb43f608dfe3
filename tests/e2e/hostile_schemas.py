"""JSON schemas that are made to cost more than they say; each number makes another one."""

import json
from collections.abc import Callable

_LARGEST = 64 * 2**10
"""Bytes that a request may have."""


def too_deep(number: int) -> str:
    """As many levels as fit."""
    level = f'{{"title":"{number}","items":'
    depth = _LARGEST // (len(level) + 1) - 1
    return level * depth + "{}" + "}" * depth


def too_long(number: int) -> str:
    """A hundred thousand levels: more than fit."""
    return f'{{"title":"{number}","items":' + '{"items":' * 100_000 + "{}" + "}" * 100_001


def no_end(number: int) -> str:
    """Nothing but beginnings."""
    return f'{{"title":"{number}","enum":' + "[" * 60_000


def product(number: int) -> str:
    """Each part has ten ways, and all parts must hold: 10^12 ways."""
    ways: list[object] = [
        {"properties": {f"p{number}-{index}": {}, f"q{index}": {}}} for index in range(10)
    ]
    return json.dumps({"allOf": [{"anyOf": ways}] * 12})


def endless(number: int) -> str:
    """Definitions that stand for each other: no text matches."""
    names = [f"d{number}-{index}" for index in range(500)]
    definitions = {
        name: {"$ref": f"#/$defs/{following}"}
        for name, following in zip(names, [*names[1:], names[0]], strict=True)
    }
    return json.dumps({"$defs": definitions, "$ref": f"#/$defs/{names[0]}"})


def deep(number: int) -> str:
    """As many levels as are taken."""
    level = f'{{"type":"object","required":["a{number}"],"properties":{{"a{number}":'
    return level * 55 + "{}" + "}}" * 55


def doubling(number: int) -> str:
    """Each of 400 levels holds the next one twice: 2^400 when written out."""
    name = f"#/$defs/d{number}-"
    definitions: dict[str, object] = {
        f"d{number}-{index}": {
            "type": "object",
            "properties": {side: {"$ref": f"{name}{index + 1}"} for side in "ab"},
            "required": ["a"],
        }
        for index in range(400)
    }
    definitions[f"d{number}-400"] = {}
    return json.dumps({"$defs": definitions, "$ref": f"{name}0"})


def counted(number: int) -> str:
    """Counts in counts: 10^12 items."""
    schema: dict[str, object] = {"type": "integer", "minimum": number}
    for _ in range(4):
        schema = {"type": "array", "minItems": 999, "maxItems": 1000, "items": schema}
    return json.dumps(schema)


def wide(number: int) -> str:
    """Seven hundred bounded numbers, each an automaton."""
    numbers = {
        f"p{index}": {"type": "integer", "minimum": number + index, "maximum": 9**9 + index}
        for index in range(700)
    }
    return json.dumps({"properties": numbers})


SCHEMAS: tuple[tuple[Callable[[int], str], bool], ...] = (
    (too_deep, False),
    (too_long, False),
    (no_end, False),
    (product, False),
    (endless, False),
    (deep, True),
    (doubling, True),
    (counted, True),
    (wide, True),
)
"""Whose they are, and whether they are served."""
