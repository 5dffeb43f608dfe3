"""A conversation, checked and turned into what the chat template takes. Renders nothing."""

import re
from dataclasses import dataclass
from typing import TypedDict

from google.protobuf import json_format

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.text import template_variables
from scheduler_svc.frontend.text.chat import OWN_VARIABLES, ChatMessage
from scheduler_svc.frontend.text.reasoning import leaves_reasoning_open
from scheduler_svc.frontend.violations import Violations

MAX_TOOLS = 128
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TOOL_NAME_RULE = "must be 1 to 64 characters of letters, digits, '_', '.' and '-'"
_NO_ARGUMENTS: dict[str, object] = {"type": "object", "properties": {}}


class TemplateOptions(TypedDict):
    """What `ChatTemplate.render` takes beside the messages; all of it JSON."""

    tools: list[dict[str, object]]
    documents: list[dict[str, object]]
    add_generation_prompt: bool
    continue_final_message: bool
    variables: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ParsedChat:
    """A valid conversation."""

    messages: tuple[ChatMessage, ...]
    options: TemplateOptions
    leaves_reasoning_open: bool
    """Whether the model goes on with a last message that is inside its reasoning."""


def parse_chat(chat: api.Chat, *, field: str, violations: Violations) -> ParsedChat:
    """The conversation; with violations noted, some stand-in."""
    if not chat.messages:
        violations.add(f"{field}.messages", "at least one message is required")
    if chat.continue_final_message and chat.add_generation_prompt:
        violations.add(f"{field}.continue_final_message", "excludes add_generation_prompt")
    adds_prompt = not chat.continue_final_message
    if chat.HasField("add_generation_prompt"):
        adds_prompt = chat.add_generation_prompt
    final = chat.messages[-1].content if chat.messages else ""
    return ParsedChat(
        messages=tuple(
            _message(one, field=f"{field}.messages[{index}]", violations=violations)
            for index, one in enumerate(chat.messages)
        ),
        options=TemplateOptions(
            tools=_tools(chat, field=f"{field}.tools", violations=violations),
            documents=[
                template_variables.document(title=one.title, text=one.text)
                for one in chat.documents
            ],
            add_generation_prompt=adds_prompt,
            continue_final_message=chat.continue_final_message,
            variables=_variables(chat, field=f"{field}.template_kwargs", violations=violations),
        ),
        leaves_reasoning_open=chat.continue_final_message and leaves_reasoning_open(final),
    )


def _message(message: api.ChatMessage, *, field: str, violations: Violations) -> ChatMessage:
    if not message.role:
        violations.add(f"{field}.role", "is required")
    return ChatMessage(
        role=message.role,
        content=message.content,
        tool_calls=[
            _tool_call(call, field=f"{field}.tool_calls[{index}]", violations=violations)
            for index, call in enumerate(message.tool_calls)
        ],
        tool_call_id=message.tool_call_id,
        name=message.name,
        reasoning=message.reasoning,
    )


def _tool_call(call: api.ToolCall, *, field: str, violations: Violations) -> dict[str, object]:
    if not call.name:
        violations.add(f"{field}.name", "is required")
    arguments = _object(call.arguments_json, field=f"{field}.arguments_json", violations=violations)
    return template_variables.tool_call(name=call.name, arguments=arguments or {}, call_id=call.id)


def _tools(chat: api.Chat, *, field: str, violations: Violations) -> list[dict[str, object]]:
    if len(chat.tools) > MAX_TOOLS:
        violations.add(field, f"must have at most {MAX_TOOLS} tools, has {len(chat.tools)}")
        return []
    return [
        _tool(one, field=f"{field}[{index}]", violations=violations)
        for index, one in enumerate(chat.tools)
    ]


def _tool(tool: api.Tool, *, field: str, violations: Violations) -> dict[str, object]:
    if not _TOOL_NAME.fullmatch(tool.name):
        violations.add(f"{field}.name", _TOOL_NAME_RULE)
    parameters = _object(
        tool.parameters_json, field=f"{field}.parameters_json", violations=violations
    )
    return template_variables.tool(
        name=tool.name,
        description=tool.description,
        parameters=_NO_ARGUMENTS if parameters is None else parameters,
    )


def _object(text: str, *, field: str, violations: Violations) -> dict[str, object] | None:
    """The JSON object; None where there is no text."""
    if not text:
        return None
    try:
        return template_variables.json_object(text)
    except template_variables.NoJsonObject as error:
        violations.add(field, f"must be the text of a JSON object: {error}")
        return None


def _variables(chat: api.Chat, *, field: str, violations: Violations) -> dict[str, object]:
    try:
        variables = dict(json_format.MessageToDict(chat.template_kwargs))
    except (ValueError, json_format.Error) as error:  # NaN and infinity have no JSON
        violations.add(field, f"must hold JSON values: {error}")
        return {}
    for name in sorted(variables.keys() & OWN_VARIABLES):
        violations.add(f"{field}.{name}", "is set by other fields of the chat")
    return variables
