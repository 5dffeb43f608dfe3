"""Turns the arguments of a call into the message the service reads. Sends and judges nothing."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, cast

from octavo.errors import invalid_field
from octavo.prompts import (
    MessagesInput,
    PromptInput,
    TemplateOptions,
    any_prompt,
    is_conversation,
)
from octavo.sampling import SamplingOptions, SamplingParams
from octavo.structured import StructuredInput, structured_message
from octavo.v1 import inference_pb2


class RequestOptions(SamplingOptions, total=False):
    """What a call accepts beside its prompt: every field of SamplingParams, and these.

    request_id: the generation's name, for attach and cancel; made by the client when absent.
    model: the served model's name, for a check; the default is whatever is served.
    time_limit_s: ends all outputs, with what they have, after this many seconds.
    skip_special_tokens: leaves special tokens out of the text (default: True).
    stream_interval: sends a chunk only when this many new tokens wait (default: 1).
    top_logprobs: gives each token's log probability and rank, and so many of the likeliest tokens.
    logprob_token_ids: further ids whose log probability is given with each token.
    prompt_top_logprobs: the same as top_logprobs, of the prompt's tokens.
    echo: sends the prompt back, in `start.prompt`.
    structured_output: the form that an output must have: a JSON Schema (a dict or a pydantic model)
        or a StructuredOutput.
    split_reasoning: gives what is between the model's reasoning marks apart from the text.
    parse_tool_calls: gives the model's function calls apart from the text.
    max_prompt_tokens: cuts a longer prompt (default: it is refused; see truncation).
    truncation: which side of a prompt that is too long is cut off, left or right (default: none
        unless max_prompt_tokens is set, then left).
    priority: lower is more urgent, -8 to 8.
    keep_for_s: how long the generation outlives its connection, and its result is kept.
    skip_cache_read: does not use cached prefixes.
    skip_cache_store: leaves nothing of this request in the prefix cache.
    """

    request_id: str
    model: str
    time_limit_s: float
    skip_special_tokens: bool
    stream_interval: int
    top_logprobs: int
    logprob_token_ids: Sequence[int]
    prompt_top_logprobs: int
    echo: bool
    structured_output: StructuredInput | None
    split_reasoning: bool
    parse_tool_calls: bool
    max_prompt_tokens: int
    truncation: Literal["left", "right"]
    priority: int
    keep_for_s: float
    skip_cache_read: bool
    skip_cache_store: bool


class ChatOptions(RequestOptions, TemplateOptions, total=False):
    """RequestOptions, and how a conversation becomes a prompt."""


# The part of a Generation that holds each argument ("" is the message itself).
_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "": ("request_id", "model"),
    "sampling": (
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "seed",
        "n",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "logit_bias",
        "allowed_token_ids",
        "bad_words",
    ),
    "stopping": (
        "max_tokens",
        "min_tokens",
        "stop",
        "stop_token_ids",
        "include_stop",
        "ignore_eos",
        "time_limit_s",
    ),
    "output": (
        "skip_special_tokens",
        "stream_interval",
        "top_logprobs",
        "logprob_token_ids",
        "prompt_top_logprobs",
        "echo",
        "split_reasoning",
        "parse_tool_calls",
    ),
    "scheduling": ("priority", "keep_for_s", "skip_cache_read", "skip_cache_store"),
}
_SIDES: Mapping[str, inference_pb2.TruncationSide.ValueType] = {
    "left": inference_pb2.TRUNCATION_SIDE_LEFT,
    "right": inference_pb2.TRUNCATION_SIDE_RIGHT,
}
_LISTS = ("stop", "stop_token_ids", "allowed_token_ids", "bad_words", "logprob_token_ids")
_TEMPLATE_NAMES = frozenset(TemplateOptions.__annotations__)
_SAMPLING_NAMES = tuple(field.name for field in fields(SamplingParams))


def split_chat_options(options: ChatOptions) -> tuple[RequestOptions, TemplateOptions]:
    """The options of the request, and those of the chat template."""
    template = {name: value for name, value in options.items() if name in _TEMPLATE_NAMES}
    request = {name: value for name, value in options.items() if name not in _TEMPLATE_NAMES}
    return cast(RequestOptions, request), cast(TemplateOptions, template)


def generation_message(
    prompt: inference_pb2.Prompt, *, params: SamplingParams | None, options: RequestOptions
) -> inference_pb2.Generation:
    """The whole request, with an id; options go before params. Raises InvalidRequest, TypeError."""
    values: dict[str, Any] = {name: getattr(params, name, None) for name in _SAMPLING_NAMES}
    values |= options
    message = inference_pb2.Generation(prompt=prompt)
    _cut(
        message.prompt,
        max_tokens=values.pop("max_prompt_tokens", None),
        side=values.pop("truncation", None),
    )
    structured = values.pop("structured_output", None)
    if structured is not None:
        message.structured_output.CopyFrom(structured_message(structured))
    for section, names in _SECTIONS.items():
        for name in names:
            _assign(message, section, name, values.pop(name, None))
    if values:
        raise TypeError(f"unknown option {next(iter(values))!r}; known: {', '.join(_known())}")
    message.request_id = message.request_id or uuid.uuid4().hex
    return message


def batch_messages(
    prompts: Sequence[PromptInput | MessagesInput],
    *,
    params: SamplingParams | Sequence[SamplingParams] | None,
    options: ChatOptions,
) -> list[inference_pb2.Generation]:
    """The requests of a batch, each with an id of its own. Raises InvalidRequest, TypeError."""
    if isinstance(prompts, str):
        raise invalid_field("prompts", "must be a list of prompts, got str")
    request_options, template = split_chat_options(options)
    if "request_id" in request_options:
        raise invalid_field("request_id", "each prompt of a batch has an id of its own")
    one_each = [params] * len(prompts) if isinstance(params, SamplingParams | None) else params
    if len(one_each) != len(prompts):
        rule = f"give one, or one for each: {len(one_each)} for {len(prompts)} prompts"
        raise invalid_field("params", rule)
    return [
        generation_message(
            any_prompt(prompt, None, template if is_conversation(prompt) else {}),
            params=one,
            options=request_options,
        )
        for prompt, one in zip(prompts, one_each, strict=True)
    ]


def _known() -> list[str]:
    names = (name for names in _SECTIONS.values() for name in names)
    return sorted([*names, "max_prompt_tokens", "structured_output", "truncation"])


def _cut(prompt: inference_pb2.Prompt, *, max_tokens: Any, side: Any) -> None:
    if max_tokens is None and side is None:
        return
    if side is not None and side not in _SIDES:
        raise invalid_field("truncation", f"must be one of {', '.join(_SIDES)}, got {side!r}")
    try:
        prompt.truncation.CopyFrom(
            inference_pb2.Truncation(max_tokens=max_tokens, side=_SIDES[side or "left"])
        )
    except (TypeError, ValueError) as error:
        raise invalid_field("max_prompt_tokens", f"cannot be {max_tokens!r} ({error})") from error


def _assign(message: inference_pb2.Generation, section: str, name: str, value: Any) -> None:
    if value is None or value == ():
        return
    target = getattr(message, section) if section else message
    try:
        if name in _LISTS:
            getattr(target, name).extend((value,) if isinstance(value, str) else value)
        elif name == "logit_bias":
            message.sampling.logit_bias.update(value)
        else:
            setattr(target, name, value)
    except (TypeError, ValueError, AttributeError) as error:
        raise invalid_field(name, f"cannot be {value!r} ({error})") from error
