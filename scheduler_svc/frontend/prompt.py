"""From a request's prompt to token ids, off the event loop when it is long. Knows no core."""

import asyncio
from array import array
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from google.protobuf import json_format

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.limits import RequestLimits
from scheduler_svc.frontend.model import ServedModel
from scheduler_svc.frontend.text.chat import ChatMessage, RenderedChat
from scheduler_svc.frontend.text.errors import ChatInvalid
from scheduler_svc.frontend.violations import Violations

# Under a millisecond of work; more would hold up every stream of this process.
_MAX_INLINE_CHARACTERS = 2048
_MAX_LISTED_VARIABLES = 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedPrompt:
    """The ids the model sees, the text they came from, and what had no effect."""

    token_ids: "array[int]"
    text: str = ""
    warnings: tuple[str, ...] = ()


_NOTHING = EncodedPrompt(token_ids=array("i"))


class PromptEncoder:
    """Renders, tokenizes and checks prompts."""

    def __init__(self, model: ServedModel, *, executor: Executor) -> None:
        self._model = model
        self._executor = executor

    async def encode(
        self, prompt: api.Prompt, *, field: str, limits: RequestLimits, violations: Violations
    ) -> EncodedPrompt:
        """The prompt's ids; with violations noted, some stand-in."""
        kind = prompt.WhichOneof("kind")
        if kind is None:
            violations.add(field, "one of text, token_ids or chat is required")
            return _NOTHING
        if kind == "token_ids":
            return _checked_ids(
                prompt.token_ids.ids, field=field, limits=limits, violations=violations
            )
        if not self._check_text(prompt, field=field, limits=limits, violations=violations):
            return _NOTHING
        try:
            encoded = await self._tokenized(prompt)
        except ChatInvalid as error:
            violations.add(f"{field}.chat.{error.field}", error.rule)
            return _NOTHING
        if not encoded.token_ids:
            violations.add(field, "must hold at least one token")
        return encoded

    def _check_text(
        self, prompt: api.Prompt, *, field: str, limits: RequestLimits, violations: Violations
    ) -> bool:
        """Whether the text may be tokenized; notes what is wrong otherwise."""
        num_bytes = prompt.ByteSize()
        if num_bytes > limits.max_text_bytes:
            violations.add(
                field,
                f"must have at most {limits.max_text_bytes} bytes of text to fit the limit of"
                f" {limits.max_sequence_tokens} tokens, has {num_bytes}",
            )
            return False
        if prompt.HasField("chat"):
            return self._check_chat(
                prompt.chat, field=f"{field}.chat", limits=limits, violations=violations
            )
        if not prompt.text:
            violations.add(f"{field}.text", "must not be empty")
            return False
        return True

    def _check_chat(
        self, chat: api.Chat, *, field: str, limits: RequestLimits, violations: Violations
    ) -> bool:
        most = limits.max_sequence_tokens
        if len(chat.messages) > most:  # before a look at each of what may be a million
            violations.add(f"{field}.messages", f"at most {most}, got {len(chat.messages)}")
            return False
        is_valid = True
        if self._model.chat_template is None:
            violations.add(field, f"model {self._model.name!r} has no chat template; send text")
            is_valid = False
        if not chat.messages:
            violations.add(f"{field}.messages", "at least one message is required")
            is_valid = False
        for index, message in enumerate(chat.messages):
            if not message.role:
                violations.add(f"{field}.messages[{index}].role", "is required")
                is_valid = False
        if chat.continue_final_message and chat.add_generation_prompt:
            violations.add(f"{field}.continue_final_message", "excludes add_generation_prompt")
            is_valid = False
        return is_valid

    async def _tokenized(self, prompt: api.Prompt) -> EncodedPrompt:
        if prompt.HasField("text"):
            return await self._encoded(prompt.text)
        rendered = await self._rendered(prompt.chat)
        # The template writes its special tokens itself.
        return await self._encoded(
            rendered.text,
            add_special_tokens=False,
            warnings=_unread_warnings(rendered.unread_variables),
        )

    async def _encoded(
        self, text: str, *, add_special_tokens: bool = True, warnings: tuple[str, ...] = ()
    ) -> EncodedPrompt:
        def encode() -> "array[int]":
            """Runs in a thread for long texts: touches nothing that changes."""
            tokenizer = self._model.tokenizer
            return array("i", tokenizer.encode(text, add_special_tokens=add_special_tokens))

        if len(text) <= _MAX_INLINE_CHARACTERS:
            ids = encode()
        else:
            ids = await asyncio.get_running_loop().run_in_executor(self._executor, encode)
        return EncodedPrompt(token_ids=ids, text=text, warnings=warnings)

    async def _rendered(self, chat: api.Chat) -> RenderedChat:
        assert self._model.chat_template is not None
        adds_prompt = not chat.continue_final_message
        if chat.HasField("add_generation_prompt"):
            adds_prompt = chat.add_generation_prompt
        return await self._model.chat_template.render(
            [ChatMessage(role=one.role, content=one.content) for one in chat.messages],
            add_generation_prompt=adds_prompt,
            continue_final_message=chat.continue_final_message,
            variables=_template_variables(chat),
        )


def no_room_rule(num_tokens: int, limits: RequestLimits) -> str:
    """What to say of a prompt that leaves no room for one generated token."""
    return (
        f"has {num_tokens} tokens and leaves no room for one more: prompt and output together"
        f" have at most {limits.max_sequence_tokens} tokens"
    )


def _checked_ids(
    ids: Sequence[int], *, field: str, limits: RequestLimits, violations: Violations
) -> EncodedPrompt:
    path = f"{field}.token_ids.ids"
    if not ids:
        violations.add(path, "must hold at least one token")
    if len(ids) > limits.max_sequence_tokens:  # before a look at each of what may be millions
        violations.add(path, no_room_rule(len(ids), limits))
        return _NOTHING
    checked = violations.token_ids(path, ids, vocab_size=limits.vocab_size)
    return EncodedPrompt(token_ids=array("i", checked))


def _template_variables(chat: api.Chat) -> dict[str, object]:
    try:
        return dict(json_format.MessageToDict(chat.template_kwargs))
    except (ValueError, json_format.Error) as error:  # NaN and infinity have no JSON
        raise ChatInvalid("template_kwargs", f"must hold JSON values: {error}") from error


def _unread_warnings(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        f"the model's chat template does not read {name[:64]!r}"
        for name in names[:_MAX_LISTED_VARIABLES]
    )
