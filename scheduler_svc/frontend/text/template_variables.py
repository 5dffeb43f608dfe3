"""What chat templates see of tools, their calls and documents: the shapes transformers gives them.

All are plain JSON values, in which keys keep their order. Knows nothing of templates or messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NoReturn


class NoJsonObject(ValueError):
    """A text is not that of a JSON object; says why."""


def json_object(text: str) -> dict[str, object]:
    """Return the object that the text is; raises NoJsonObject."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise NoJsonObject("is nested too deeply") from error
    except ValueError as error:
        raise NoJsonObject(str(error)) from error
    if not isinstance(value, dict):
        raise NoJsonObject(f"is a {type(value).__name__}")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise NoJsonObject(f"{name} is no JSON")


def tool(*, name: str, description: str, parameters: Mapping[str, object]) -> dict[str, object]:
    """A function that the model may call; `parameters` is a JSON Schema."""
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def tool_call(
    *, name: str, arguments: Mapping[str, object], call_id: str = ""
) -> dict[str, object]:
    """A call that an assistant's message makes."""
    variable: dict[str, object] = {
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    return {"id": call_id, **variable} if call_id else variable


def document(*, title: str, text: str) -> dict[str, object]:
    """A text that a template may quote."""
    return {"title": title, "text": text}
