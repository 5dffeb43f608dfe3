"""From a request's prompt to token ids, off the event loop when it is long. Knows no core."""

import asyncio
import dataclasses
from array import array
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.limits import RequestLimits
from scheduler_svc.frontend.model import ServedModel
from scheduler_svc.frontend.parse_chat import parse_chat
from scheduler_svc.frontend.text.errors import ChatInvalid
from scheduler_svc.frontend.truncation import Cut, parse_truncation
from scheduler_svc.frontend.violations import Violations

# Under a millisecond of work; more would hold up every stream of this process.
_MAX_INLINE_CHARACTERS = 2048
_MAX_INLINE_IDS = 1 << 16
_MAX_LISTED_VARIABLES = 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedPrompt:
    """The ids the model sees, the text they came from, and what had no effect."""

    token_ids: "array[int]"
    text: str = ""
    """What was tokenized, before any cut; empty for ids."""
    warnings: tuple[str, ...] = ()
    num_truncated: int = 0
    leaves_reasoning_open: bool = False
    """Whether it ends inside what the assistant says as its reasoning."""


_NOTHING = EncodedPrompt(token_ids=array("i"))


class PromptEncoder:
    """Renders, tokenizes, cuts and checks prompts."""

    def __init__(self, model: ServedModel, *, executor: Executor) -> None:
        self._model = model
        self._executor = executor

    async def encode(
        self, prompt: api.Prompt, *, field: str, limits: RequestLimits, violations: Violations
    ) -> EncodedPrompt:
        """The prompt's ids; with violations noted, some stand-in."""
        cut = parse_truncation(prompt, field=field, limits=limits, violations=violations)
        kind = prompt.WhichOneof("kind")
        if kind is None:
            violations.add(field, "one of text, token_ids or chat is required")
            return _NOTHING
        if kind == "token_ids":
            return await self._checked_ids(
                prompt.token_ids.ids,
                cut=cut,
                field=f"{field}.token_ids.ids",
                limits=limits,
                violations=violations,
            )
        if not _is_short_enough(
            prompt, is_cut=cut is not None, field=field, limits=limits, violations=violations
        ):
            return _NOTHING
        if kind == "chat":
            encoded = await self._chat(
                prompt.chat, cut=cut, field=f"{field}.chat", limits=limits, violations=violations
            )
        elif prompt.text:
            encoded = await self._tokenized(prompt.text, cut=cut)
        else:
            violations.add(f"{field}.text", "must not be empty")
            return _NOTHING
        if encoded is None:
            return _NOTHING
        if not encoded.token_ids:
            violations.add(field, "must hold at least one token")
        return encoded

    async def _chat(
        self,
        chat: api.Chat,
        *,
        cut: Cut | None,
        field: str,
        limits: RequestLimits,
        violations: Violations,
    ) -> EncodedPrompt | None:
        """The rendered conversation's ids; None, with what is wrong noted, when there are none."""
        most = limits.max_sequence_tokens
        if len(chat.messages) > most:  # before a look at each of what may be a million
            violations.add(f"{field}.messages", f"at most {most}, got {len(chat.messages)}")
            return None
        num_before = violations.num_found
        parsed = parse_chat(chat, field=field, violations=violations)
        template = self._model.chat_template
        if template is None:
            violations.add(field, f"model {self._model.name!r} has no chat template; send text")
        if template is None or violations.num_found > num_before:
            return None
        try:
            rendered = await template.render(parsed.messages, **parsed.options)
        except ChatInvalid as error:
            violations.add(f"{field}.{error.field}", error.rule)
            return None
        # The template writes its special tokens itself.
        encoded = await self._tokenized(rendered.text, cut=cut, add_special_tokens=False)
        return dataclasses.replace(
            encoded,
            warnings=_unread_warnings(rendered.unread_variables),
            leaves_reasoning_open=parsed.leaves_reasoning_open,
        )

    async def _tokenized(
        self, text: str, *, cut: Cut | None, add_special_tokens: bool = True
    ) -> EncodedPrompt:
        def encode() -> EncodedPrompt:
            """Runs in a thread for long texts: touches nothing that changes."""
            return self._encode(text, cut=cut, add_special_tokens=add_special_tokens)

        if len(text) <= _MAX_INLINE_CHARACTERS:
            return encode()
        return await asyncio.get_running_loop().run_in_executor(self._executor, encode)

    def _encode(self, text: str, *, cut: Cut | None, add_special_tokens: bool) -> EncodedPrompt:
        tokenizer = self._model.tokenizer
        ids = array("i", tokenizer.encode(text, add_special_tokens=add_special_tokens))
        if cut is None or len(ids) <= cut.max_tokens:
            return EncodedPrompt(token_ids=ids, text=text)
        num_before = num_after = 0
        if add_special_tokens:
            bare = array("i", tokenizer.encode(text, add_special_tokens=False))
            num_before, num_after = _num_added(ids, bare)
        kept = cut.apply(ids, num_before=num_before, num_after=num_after)
        return EncodedPrompt(token_ids=kept, text=text, num_truncated=len(ids) - len(kept))

    async def _checked_ids(
        self,
        ids: Sequence[int],
        *,
        cut: Cut | None,
        field: str,
        limits: RequestLimits,
        violations: Violations,
    ) -> EncodedPrompt:
        if not ids:
            violations.add(field, "must hold at least one token")
        if cut is None and len(ids) > limits.max_sequence_tokens:  # before a look at each
            violations.add(field, no_room_rule(len(ids), limits))
            return _NOTHING

        def check() -> EncodedPrompt:
            """Runs in a thread for many ids."""
            checked = violations.token_ids(field, ids, vocab_size=limits.vocab_size)
            whole = array("i", checked)
            kept = whole if cut is None else cut.apply(whole)
            return EncodedPrompt(token_ids=kept, num_truncated=len(whole) - len(kept))

        if len(ids) <= _MAX_INLINE_IDS:
            return check()
        return await asyncio.get_running_loop().run_in_executor(self._executor, check)


def _num_added(ids: "array[int]", bare: "array[int]") -> tuple[int, int]:
    """How many ids the tokenizer put before and after those of the text itself."""
    num_added = len(ids) - len(bare)
    for num_before in range(num_added + 1):
        if ids[num_before : num_before + len(bare)] == bare:
            return num_before, num_added - num_before
    return 0, 0  # the text reads otherwise behind them: nothing is kept apart


def _is_short_enough(
    prompt: api.Prompt,
    *,
    is_cut: bool,
    field: str,
    limits: RequestLimits,
    violations: Violations,
) -> bool:
    """Whether the text may be tokenized to see whether it fits; any that will be cut may."""
    num_bytes = prompt.ByteSize()
    if is_cut or num_bytes <= limits.max_text_bytes:
        return True
    violations.add(
        field,
        f"must have at most {limits.max_text_bytes} bytes of text to fit the limit of"
        f" {limits.max_sequence_tokens} tokens, has {num_bytes}",
    )
    return False


def no_room_rule(num_tokens: int, limits: RequestLimits) -> str:
    """What to say of a prompt that leaves no room for one generated token."""
    return (
        f"has {num_tokens} tokens and leaves no room for one more: prompt and output together"
        f" have at most {limits.max_sequence_tokens} tokens"
    )


def _unread_warnings(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        f"the model's chat template does not read {name[:64]!r}"
        for name in names[:_MAX_LISTED_VARIABLES]
    )
