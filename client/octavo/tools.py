"""Functions that a model may call, and its calls, as users write and get them. Sends nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from octavo.errors import invalid_field
from octavo.results import ToolCall
from octavo.v1 import inference_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call; `parameters` is the JSON Schema of its arguments."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None


# A Tool, or a dict with its fields, as it is or under "function".
ToolInput: TypeAlias = Tool | Mapping[str, Any]
# A ToolCall, or a dict with id, name and arguments, as it is or with the latter under "function".
ToolCallInput: TypeAlias = ToolCall | Mapping[str, Any]


def tool_messages(tools: Sequence[ToolInput]) -> list[inference_pb2.Tool]:
    """The messages of a call's tools; raises InvalidRequest."""
    return [_tool(one, f"tools[{place}]") for place, one in enumerate(tools)]


def tool_call_messages(calls: Sequence[ToolCallInput], field: str) -> list[inference_pb2.ToolCall]:
    """The messages of the calls that an assistant's message makes; raises InvalidRequest."""
    return [_tool_call(one, f"{field}[{place}]") for place, one in enumerate(calls)]


def _tool(tool: ToolInput, field: str) -> inference_pb2.Tool:
    if isinstance(tool, Tool):
        tool = {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
        }
    values = _function(tool, field, known={"name", "description", "parameters"})
    parameters = values.get("parameters")
    return inference_pb2.Tool(
        name=_text(values.get("name"), f"{field}.name"),
        description=_text(values.get("description", ""), f"{field}.description"),
        parameters_json="" if parameters is None else _json(parameters, f"{field}.parameters"),
    )


def _tool_call(call: ToolCallInput, field: str) -> inference_pb2.ToolCall:
    if isinstance(call, ToolCall):
        return inference_pb2.ToolCall(
            id=call.id, name=call.name, arguments_json=call.arguments_json
        )
    values = _function(call, field, known={"id", "name", "arguments", "index"})
    arguments = values.get("arguments", {})
    return inference_pb2.ToolCall(
        id=_text(values.get("id", ""), f"{field}.id"),
        name=_text(values.get("name"), f"{field}.name"),
        arguments_json=arguments
        if isinstance(arguments, str)
        else _json(arguments, f"{field}.arguments"),
    )


def _function(value: object, field: str, *, known: set[str]) -> Mapping[str, Any]:
    """The fields, without the layer that says that it is a function."""
    if not isinstance(value, Mapping):
        raise invalid_field(field, f"must be a dict, got {type(value).__name__}")
    values: dict[str, Any] = {name: one for name, one in value.items() if name != "function"}
    if "function" in value:
        if not isinstance(value["function"], Mapping):
            raise invalid_field(f"{field}.function", "must be a dict")
        values |= value["function"]
    kind = values.pop("type", "function")
    if kind != "function":
        raise invalid_field(f"{field}.type", f"must be function, got {kind!r}")
    for name in sorted(set(values) - known):
        raise invalid_field(f"{field}.{name}", f"is not served: {', '.join(sorted(known))} are")
    return values


def _text(value: object, field: str) -> str:
    if not isinstance(value, str):
        kind = "nothing" if value is None else type(value).__name__
        raise invalid_field(field, f"must be a str, got {kind}")
    return value


def _json(value: object, field: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid_field(field, f"must hold JSON values ({error})") from error
