"""Random JSON Schemas, from a seed. Knows nothing of who compiles them."""

import json
from collections.abc import Callable
from random import Random

Schema = dict[str, object]

_WORDS = ("name", "id", "größe", "a b", 'quo"te', "items", "x", "数", "is_open", "🙂")
_PATTERNS = ("^[a-z]{1,4}$", "^(ab|cd)+$", "^\\d{3}-\\d{2}$", "^[^x]{0,6}$")


def random_schema(seed: int) -> str:
    """The text of a schema that some values satisfy."""
    draw = Random(seed)
    schema = _any(draw, depth=draw.randrange(1, 4))
    if draw.random() < 0.15:
        schema = _recursive(draw)
    if draw.random() < 0.5:
        schema["x-guidance"] = {"whitespace_flexible": False}
    return json.dumps(schema, ensure_ascii=draw.random() < 0.5)


def _any(draw: Random, *, depth: int) -> Schema:
    leaves: list[Callable[..., Schema]] = [_string, _integer, _number, _enum, _plain]
    nodes: list[Callable[..., Schema]] = [_object, _object, _array, _any_of]
    make = draw.choice(nodes if depth and draw.random() < 0.8 else leaves)
    return make(draw, depth=depth - 1)


def _object(draw: Random, *, depth: int) -> Schema:
    names = draw.sample(_WORDS, draw.randrange(0, 5))
    return {
        "type": "object",
        "properties": {name: _any(draw, depth=max(depth, 0)) for name in names},
        "required": [name for name in names if draw.random() < 0.6],
        "additionalProperties": draw.random() < 0.2,
    }


def _array(draw: Random, *, depth: int) -> Schema:
    least = draw.randrange(0, 3)
    return {
        "type": "array",
        "items": _any(draw, depth=max(depth, 0)),
        "minItems": least,
        "maxItems": least + draw.randrange(0, 3),
    }


def _any_of(draw: Random, *, depth: int) -> Schema:
    return {"anyOf": [_any(draw, depth=max(depth, 0)) for _ in range(draw.randrange(1, 4))]}


def _string(draw: Random, *, depth: int) -> Schema:
    if draw.random() < 0.4:
        return {"type": "string", "pattern": draw.choice(_PATTERNS)}
    least = draw.randrange(0, 4)
    return {"type": "string", "minLength": least, "maxLength": least + draw.randrange(0, 9)}


def _integer(draw: Random, *, depth: int) -> Schema:
    least = draw.randrange(-200, 200)
    return {"type": "integer", "minimum": least, "maximum": least + draw.randrange(0, 1000)}


def _number(draw: Random, *, depth: int) -> Schema:
    least = draw.randrange(-50, 50)
    return {"type": "number", "minimum": least, "exclusiveMaximum": least + draw.randrange(1, 99)}


def _enum(draw: Random, *, depth: int) -> Schema:
    values = [*_WORDS, 0, -1.5, True, None, [1, "a"], {"k": "v"}]
    return {"enum": draw.sample(values, draw.randrange(1, 6))}


def _plain(draw: Random, *, depth: int) -> Schema:
    return draw.choice([{"type": "boolean"}, {"type": "null"}, {"const": draw.choice(_WORDS)}])


def _recursive(draw: Random) -> Schema:
    """A tree."""
    node: Schema = {
        "type": "object",
        "properties": {
            "value": _any(draw, depth=0),
            "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
        },
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    return {"$defs": {"node": node}, "$ref": "#/$defs/node"}
