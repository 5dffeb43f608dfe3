"""A conversation rendered through the checkpoint's own template, as transformers renders it.

The template runs in a sandbox. Knows nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from jinja2 import meta

from scheduler_svc.frontend.text.errors import ChatInvalid, TokenizerFileInvalid
from scheduler_svc.frontend.text.template_environment import make_environment
from scheduler_svc.frontend.text.template_source import TemplateSource, find_template

# Text added to the last message, to find where its end is in the rendered conversation.
_END_MARK = "\ue000end-of-final-message\ue001"
OWN_VARIABLES = frozenset({"messages", "add_generation_prompt", "tools", "documents"})
"""What the template reads of the chat itself, and no further variable may replace."""


@dataclass(frozen=True, kw_only=True)
class ChatMessage:
    """One message of a conversation; what is empty is not there for the template."""

    role: str
    content: str
    tool_calls: Sequence[Mapping[str, object]] = ()
    """As the template sees them: see `template_variables.tool_call`."""
    tool_call_id: str = ""
    name: str = ""
    reasoning: str = ""

    def as_variable(self) -> dict[str, object]:
        """What the template sees."""
        variable: dict[str, object] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            variable["tool_calls"] = list(self.tool_calls)
        if self.tool_call_id:
            variable["tool_call_id"] = self.tool_call_id
        if self.name:
            variable["name"] = self.name
        if self.reasoning:  # the second name is what some templates call it
            variable |= {"reasoning_content": self.reasoning, "thinking": self.reasoning}
        return variable


@dataclass(frozen=True, kw_only=True)
class RenderedChat:
    """The prompt's text, and the given variables that the template does not read."""

    text: str
    unread_variables: tuple[str, ...]


class ChatTemplate:
    """One compiled template. Made by `ChatTemplate.load`."""

    def __init__(
        self, source: TemplateSource, *, special_tokens: Mapping[str, str], max_characters: int
    ) -> None:
        """Compile the template; a rendered conversation has at most `max_characters`."""
        environment = make_environment()
        try:
            syntax_tree = environment.parse(source.text)
            self._template = environment.from_string(source.text)
        except jinja2.TemplateError as error:
            rule = f"the chat template must be valid: {error.message} (line {_line(error)})"
            raise TokenizerFileInvalid(source.path, rule) from error
        self._read_variables = meta.find_undeclared_variables(syntax_tree)
        self._special_tokens = special_tokens
        self._max_characters = max_characters

    @classmethod
    def load(
        cls, model_dir: Path, *, special_tokens: Mapping[str, str], max_characters: int = 1 << 24
    ) -> ChatTemplate | None:
        """Return the checkpoint's template, None when it has none.

        Raises `TokenizerFileInvalid` when the file or the template breaks a rule.
        """
        source = find_template(model_dir)
        if source is None:
            return None
        return cls(source, special_tokens=special_tokens, max_characters=max_characters)

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, object]] = (),
        documents: Sequence[Mapping[str, object]] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, object] | None = None,
    ) -> RenderedChat:
        """Return the text of the conversation.

        `tools` and `documents` are as the template sees them, see `template_variables`. Raises
        `ChatInvalid` naming `messages`, `continue_final_message` or the variable.
        """
        given = dict(variables or {})
        self._check(messages, add_generation_prompt, continue_final_message, given)
        contents = [message.as_variable() for message in messages]
        if continue_final_message:
            contents[-1]["content"] = f"{messages[-1].content}{_END_MARK} "
        text = self._run(
            {
                **self._special_tokens,
                **given,
                "messages": contents,
                "tools": list(tools) or None,
                "documents": list(documents) or None,
                "add_generation_prompt": add_generation_prompt,
            }
        )
        if continue_final_message:
            text = _cut_at_mark(text, final_content=messages[-1].content)
        used = {"tools": tools, "documents": documents}
        passed = given.keys() | {name for name, values in used.items() if values}
        return RenderedChat(
            text=text, unread_variables=tuple(sorted(passed - self._read_variables))
        )

    def _check(
        self,
        messages: Sequence[ChatMessage],
        add_generation_prompt: bool,  # noqa: FBT001 - private, called once
        continue_final_message: bool,  # noqa: FBT001
        given: Mapping[str, object],
    ) -> None:
        if not messages:
            raise ChatInvalid("messages", "at least one message is needed")
        if add_generation_prompt and continue_final_message:
            rule = "excludes add_generation_prompt"
            raise ChatInvalid("continue_final_message", rule)
        for name in sorted(given.keys() & OWN_VARIABLES):
            raise ChatInvalid(f"template_kwargs.{name}", "is set by other fields of the chat")

    def _run(self, variables: Mapping[str, object]) -> str:
        parts: list[str] = []
        num_characters = 0
        try:
            for part in self._template.generate(variables):
                num_characters += len(part)
                if num_characters > self._max_characters:
                    rule = f"the rendered chat must have at most {self._max_characters} characters"
                    raise ChatInvalid("messages", rule)
                parts.append(part)
        except ChatInvalid:
            raise
        except jinja2.TemplateError as error:
            rule = f"the model's chat template refuses them: {error.message}"
            raise ChatInvalid("messages", rule) from error
        except Exception as error:  # a template is a program of the checkpoint's author
            rule = f"the model's chat template fails on them: {type(error).__name__}: {error}"
            raise ChatInvalid("messages", rule) from error
        return "".join(parts)


def _line(error: jinja2.TemplateError) -> int:
    return error.lineno if isinstance(error, jinja2.TemplateSyntaxError) else 0


def _cut_at_mark(text: str, *, final_content: str) -> str:
    """Return the text up to the end of the final message's content."""
    end = text.rfind(_END_MARK)
    if end < 0 or final_content.strip() not in text:
        rule = "the model's chat template does not keep the end of the final message"
        raise ChatInvalid("continue_final_message", rule)
    before = text[:end]
    keeps_space = text.startswith(f"{_END_MARK} ", end)
    # A template that trims messages would have trimmed the spaces before the mark too.
    return before if keeps_space else before.rstrip()
