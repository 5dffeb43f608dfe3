"""The ways a user may write a prompt, turned into the message the service reads. Sends nothing."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias, TypedDict

from octavo.errors import invalid_field
from octavo.tools import ToolCallInput, ToolInput, tool_call_messages, tool_messages
from octavo.v1 import inference_pb2

# Plain text, token ids, or a dict with "prompt" (text) or "prompt_token_ids".
PromptInput: TypeAlias = str | Sequence[int] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation; `role` is such as system, user, assistant or tool.

    tool_calls: the calls that an assistant's message makes, such as `generation.tool_calls`.
    tool_call_id: the call that a tool's message answers.
    name: of the speaker, or of the tool that answers.
    reasoning: of an assistant's message, apart from its content.
    """

    role: str
    content: str = ""
    tool_calls: Sequence[ToolCallInput] = ()
    tool_call_id: str = ""
    name: str = ""
    reasoning: str = ""


# A conversation, oldest message first; a str is one message of the user. A dict has the fields of a
# Message; reasoning_content is another name for reasoning.
MessagesInput: TypeAlias = str | Sequence[Message | Mapping[str, Any]]


_MESSAGE_FIELDS = tuple(field.name for field in fields(Message))
_MESSAGE_TEXTS = tuple(name for name in _MESSAGE_FIELDS if name != "tool_calls")


class TemplateOptions(TypedDict, total=False):
    """How a conversation becomes a prompt.

    template_kwargs: further variables of the model's chat template, such as enable_thinking.
    add_generation_prompt: adds what makes the model answer as the assistant (default: True).
    continue_final_message: leaves the last message open, so that the model continues it.
    tools: functions that the model may call; parse_tool_calls finds its calls in the answer.
    documents: texts for the template, each a dict with title and text.
    """

    template_kwargs: Mapping[str, Any]
    tools: Sequence[ToolInput]
    documents: Sequence[Mapping[str, str]]
    add_generation_prompt: bool
    continue_final_message: bool


def is_conversation(value: object) -> bool:
    """Whether a value is a list of messages (and not text or token ids)."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) > 0
        and isinstance(value[0], Message | Mapping)
    )


def any_prompt(
    prompt: PromptInput | MessagesInput | None,
    messages: MessagesInput | None,
    options: TemplateOptions,
) -> inference_pb2.Prompt:
    """The prompt of a call that takes either a plain prompt or a conversation; exactly one."""
    if (prompt is None) == (messages is None):
        raise invalid_field("prompt", "give either a prompt or messages")
    if messages is not None:
        return chat_prompt(messages, options)
    if is_conversation(prompt):
        return chat_prompt(prompt, options)  # type: ignore[arg-type]  # what was just asked
    if options:
        raise invalid_field(
            next(iter(options)), "only a conversation (messages=...) has a template"
        )
    return plain_prompt(prompt)  # type: ignore[arg-type]  # neither None nor a conversation


def plain_prompt(prompt: PromptInput) -> inference_pb2.Prompt:
    """A prompt that goes to the model as it is; raises InvalidRequest for anything else."""
    if isinstance(prompt, str):
        return inference_pb2.Prompt(text=prompt)
    if isinstance(prompt, Mapping):
        return _dict_prompt(prompt)
    return inference_pb2.Prompt(token_ids=inference_pb2.TokenIds(ids=_ids(prompt)))


def chat_prompt(messages: MessagesInput, options: TemplateOptions) -> inference_pb2.Prompt:
    """A conversation that goes through the model's chat template; raises InvalidRequest."""
    if isinstance(messages, str):
        messages = (Message("user", messages),)
    chat = inference_pb2.Chat(
        messages=[_chat_message(message, place) for place, message in enumerate(messages)],
        add_generation_prompt=options.get("add_generation_prompt"),
        continue_final_message=options.get("continue_final_message"),
        tools=tool_messages(options.get("tools", ())),
        documents=[
            _document(document, f"documents[{place}]")
            for place, document in enumerate(options.get("documents", ()))
        ],
    )
    _fill_template_kwargs(chat, options.get("template_kwargs"))
    return inference_pb2.Prompt(chat=chat)


def _dict_prompt(prompt: Mapping[str, Any]) -> inference_pb2.Prompt:
    if set(prompt) == {"prompt_token_ids"}:
        return plain_prompt(prompt["prompt_token_ids"])
    if set(prompt) == {"prompt"} and isinstance(prompt["prompt"], str):
        return inference_pb2.Prompt(text=prompt["prompt"])
    raise invalid_field(
        "prompt", f"a dict holds either prompt_token_ids or prompt (a str), got {sorted(prompt)}"
    )


def _ids(prompt: Iterable[Any]) -> list[int]:
    if isinstance(prompt, bytes | bytearray):
        raise invalid_field("prompt", "must be str or token ids, got bytes: decode them first")
    try:
        ids = [operator.index(token_id) for token_id in prompt]
    except TypeError:
        kind = type(prompt).__name__
        raise invalid_field("prompt", f"must be str or a list of token ids, got {kind}") from None
    if any(not -(2**31) <= token_id < 2**31 for token_id in ids):
        raise invalid_field("prompt", "token ids must fit 32 bits")
    return ids


def _chat_message(message: object, place: int) -> inference_pb2.ChatMessage:
    field = f"messages[{place}]"
    if isinstance(message, Message):
        values: dict[str, Any] = {name: getattr(message, name) for name in _MESSAGE_FIELDS}
    elif isinstance(message, Mapping):
        values = dict(message)
    else:
        raise invalid_field(field, f"must be a Message or a dict, got {type(message).__name__}")
    if "reasoning_content" in values:
        values["reasoning"] = values.pop("reasoning_content") or ""
    calls = values.pop("tool_calls", None) or ()
    if calls and values.get("content") is None:
        values["content"] = ""  # a message of calls needs no words
    made = _texts(values, field, names=_MESSAGE_TEXTS, required=("role", "content"))
    return inference_pb2.ChatMessage(
        **made, tool_calls=tool_call_messages(calls, f"{field}.tool_calls")
    )


def _document(document: object, field: str) -> inference_pb2.Document:
    if not isinstance(document, Mapping):
        raise invalid_field(field, f"must be a dict, got {type(document).__name__}")
    return inference_pb2.Document(
        **_texts(dict(document), field, names=("title", "text"), required=())
    )


def _texts(
    values: Mapping[str, object], field: str, *, names: Sequence[str], required: Sequence[str]
) -> dict[str, str]:
    """The texts of these names; raises InvalidRequest for others, and what is no text."""
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise invalid_field(f"{field}.{unknown[0]}", f"is not served: {', '.join(names)} are")
    texts: dict[str, str] = {}
    for name in names:
        value = values.get(name)
        if isinstance(value, str):
            texts[name] = value
        elif value is not None or name in required:
            kind = "nothing" if value is None else type(value).__name__
            raise invalid_field(f"{field}.{name}", f"must be a str, got {kind}")
    return texts


def _fill_template_kwargs(chat: inference_pb2.Chat, kwargs: Mapping[str, Any] | None) -> None:
    if kwargs is None:
        return
    try:
        chat.template_kwargs.update(kwargs)
    except (TypeError, ValueError) as error:
        raise invalid_field("template_kwargs", f"must hold JSON values ({error})") from error
