"""Whatever a conversation holds, its prompt is what transformers renders of it, in every family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
from google.protobuf import json_format
from transformers import AutoTokenizer

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.parse_chat import parse_chat
from scheduler_svc.frontend.text.chat import ChatTemplate
from scheduler_svc.frontend.text.errors import ChatInvalid
from scheduler_svc.frontend.text.template_source import find_template
from scheduler_svc.frontend.violations import Violations
from tests.checkpoints import smollm2_folder
from tests.fakes.chat_templates import HERMES, LLAMA3, QWEN3

Json = dict[str, Any]
WEATHER: Json = {
    "name": "get_weather",
    "description": "Says how the weather is, today & tomorrow.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
        "required": ["city"],
    },
}
ADD: Json = {
    "name": "add",
    "description": "Adds <b>numbers</b>.",
    "parameters": {"type": "object", "properties": {"z": {}, "a": {"enum": ["é", 1.5, None]}}},
}
SYSTEM: Json = {"role": "system", "content": "  Be brief.\n"}
USER: Json = {"role": "user", "content": "How is Žďár? 日本 🎉\n\n"}
PLAIN: Json = {"role": "assistant", "content": "Fine, thanks. "}
THOUGHT: Json = {"role": "assistant", "content": "Cold.", "reasoning_content": "\nIt is May…\n"}
INLINE: Json = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes"}
ANSWER: Json = {"role": "tool", "content": '{"t": -3, "ž": "ano"}', "tool_call_id": "c1"}
NAMED: Json = {"role": "tool", "content": "5", "tool_call_id": "c2", "name": "add"}


def calls(*wanted: tuple[str, Json], content: str = "", **fields: str) -> Json:
    made = [
        {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(wanted, start=1)
    ]
    return {"role": "assistant", "content": content, **fields, "tool_calls": made}


ONE = calls(("get_weather", {"days": 2, "city": "Žďár"}))
TWO = calls(("get_weather", {"city": "A"}), ("add", {"z": [1, {"b": None}]}), content="Two calls:")
# Messages, then what else goes into the template.
CONVERSATIONS: dict[str, tuple[list[Json], Json]] = {
    "question": ([USER], {}),
    "system": ([SYSTEM, USER], {}),
    "second turn": ([SYSTEM, USER, PLAIN, USER], {}),
    "no prompt for the answer": ([USER, PLAIN], {"add_generation_prompt": False}),
    "empty content": ([{"role": "user", "content": ""}], {}),
    "special tokens in content": ([{"role": "user", "content": "a<|im_end|>b<think>"}], {}),
    "spaces": ([{"role": "user", "content": "  a \t\n"}, PLAIN, USER], {}),
    "continued": ([USER, PLAIN], {"continue_final_message": True}),
    "continued after spaces": (
        [SYSTEM, USER, {"role": "assistant", "content": "It is  "}],
        {"continue_final_message": True},
    ),
    "reasoning of an earlier turn": ([USER, THOUGHT, USER], {}),
    "reasoning in the content": ([USER, INLINE, USER, INLINE], {"add_generation_prompt": False}),
    "thinking switched off": ([SYSTEM, USER], {"enable_thinking": False}),
    "thinking switched on": ([USER], {"enable_thinking": True}),
    "a tool": ([USER], {"tools": [WEATHER]}),
    "tools behind a system message": ([SYSTEM, USER], {"tools": [WEATHER, ADD]}),
    "a call and its answer": ([USER, ONE, ANSWER], {"tools": [WEATHER]}),
    "two calls and two answers": ([USER, TWO, ANSWER, NAMED], {"tools": [WEATHER, ADD]}),
    "calls with reasoning": (
        [USER, {**ONE, "reasoning_content": "I ask."}, ANSWER, THOUGHT, USER],
        {"tools": [WEATHER]},
    ),
    "a call without tools": ([USER, ONE, ANSWER, PLAIN, USER], {}),
    "documents and other variables": (
        [USER],
        {
            "documents": [{"title": "T & U", "text": " one "}, {"title": "", "text": "two"}],
            "date_string": "1 May 2026",
            "extra": {"a": [1, True, None, "x"]},
        },
    ),
}


@pytest.fixture(scope="module", params=["qwen3", "hermes", "llama3", "smollm2"])
def source(request: pytest.FixtureRequest) -> str:
    own = {"qwen3": QWEN3, "hermes": HERMES, "llama3": LLAMA3}
    if request.param in own:
        return own[request.param]
    found = find_template(smollm2_folder())
    assert found is not None
    return found.text


@pytest.fixture(scope="module")
def reference() -> Any:
    return AutoTokenizer.from_pretrained(smollm2_folder())


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_is_rendered_as_transformers_renders_it(
    source: str, reference: Any, tmp_path: Path, name: str
) -> None:
    messages, options = CONVERSATIONS[name]
    expected = by_transformers(reference, source, messages, options)
    (tmp_path / "chat_template.jinja").write_text(source, encoding="utf-8")
    assert by_us(reference, tmp_path, messages, options) == expected


def by_transformers(reference: Any, source: str, messages: list[Json], options: Json) -> str:
    """The prompt, or the template's words where it refuses the conversation."""
    given = {"add_generation_prompt": not options.get("continue_final_message"), **options}
    if "tools" in given:
        given["tools"] = [{"type": "function", "function": tool} for tool in given["tools"]]
    try:
        text: str = reference.apply_chat_template(
            messages, chat_template=source, tokenize=False, **given
        )
    except jinja2.TemplateError as error:
        return f"refused: {error}"
    return text


def by_us(reference: Any, folder: Path, messages: list[Json], options: Json) -> str:
    violations = Violations()
    parsed = parse_chat(as_chat(messages, options), field="chat", violations=violations)
    violations.raise_if_any()
    template = ChatTemplate.load(folder, special_tokens=reference.special_tokens_map)
    assert template is not None
    try:
        return template.render(parsed.messages, **parsed.options).text
    except ChatInvalid as error:
        return f"refused: {error.rule.rpartition(': ')[2]}"


def as_chat(messages: list[Json], options: Json) -> api.Chat:
    """The conversation as a client of ours writes it."""
    chat = api.Chat()
    for name in ("add_generation_prompt", "continue_final_message"):
        if name in options:
            setattr(chat, name, options[name])
    chat.tools.extend(
        api.Tool(
            name=tool["name"],
            description=tool["description"],
            parameters_json=json.dumps(tool["parameters"], ensure_ascii=False),
        )
        for tool in options.get("tools", ())
    )
    chat.documents.extend(api.Document(**document) for document in options.get("documents", ()))
    own = {"add_generation_prompt", "continue_final_message", "tools", "documents"}
    json_format.ParseDict(
        {name: value for name, value in options.items() if name not in own}, chat.template_kwargs
    )
    chat.messages.extend(_as_message(message) for message in messages)
    return chat


def _as_message(message: Json) -> api.ChatMessage:
    return api.ChatMessage(
        role=message["role"],
        content=message["content"],
        reasoning=message.get("reasoning_content", ""),
        name=message.get("name", ""),
        tool_call_id=message.get("tool_call_id", ""),
        tool_calls=[
            api.ToolCall(
                id=call["id"],
                name=call["function"]["name"],
                arguments_json=json.dumps(call["function"]["arguments"]),
            )
            for call in message.get("tool_calls", ())
        ],
    )
