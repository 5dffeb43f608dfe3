"""What a service answers, as frozen values. Knows nothing of how it was asked."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from octavo.sampling import SamplingParams


class FinishReason(StrEnum):
    """How an output ended."""

    EOS = "eos"  # the model chose one of its end ids
    STOP_TOKEN = "stop_token"  # the model chose one of the request's stop ids
    STOP_STRING = "stop_string"  # one of the request's stop strings appeared
    LENGTH = "length"  # the length limit was reached
    TIME_LIMIT = "time_limit"  # time_limit_s passed
    CANCELLED = "cancelled"  # somebody called cancel
    ERROR = "error"  # this output failed


class CancelOutcome(StrEnum):
    """What a cancel found."""

    CANCELLED = "cancelled"  # the generation was waiting or running and is now cancelled
    ALREADY_FINISHED = "already_finished"  # it had ended, and is only retained


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of a request; `cached_tokens` of the prompt were found in the prefix cache."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """How one output ended."""

    reason: FinishReason
    num_tokens: int
    stop_string: str = ""
    stop_token_id: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a function by the model; `arguments_json` is the text of a JSON object."""

    id: str
    name: str
    arguments_json: str

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name."""
        arguments: dict[str, Any] = json.loads(self.arguments_json)
        return arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """News of one of an output's calls; joined by `index`, deltas make the call."""

    index: int
    id: str
    name: str
    arguments_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAlternative:
    """Another token in a token's place."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """How likely a token was, in the model's own distribution.

    `rank` is its place by probability, from 1; 0 where nothing is known, for the service got the
    token from a client that went on with its generation elsewhere. `top` has the likeliest tokens,
    `chosen` those of logprob_token_ids.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[TokenAlternative, ...] = ()
    chosen: tuple[TokenAlternative, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """The news of one output since the previous delta of the same output.

    `text`, `reasoning` and `token_ids` only ever append; `first_token_index` is the place of the
    first id among the output's tokens; `finish` is there in the last delta only; `usage` counts so
    far. `reasoning` needs split_reasoning, `tool_calls` parse_tool_calls, `logprobs` (one for each
    id) top_logprobs.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    first_token_index: int
    finish: Finish | None
    usage: Usage
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def finish_reason(self) -> FinishReason | None:
        """How the output ended; None while it goes on."""
        return self.finish.reason if self.finish else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One output: its whole text and ids. `finish` is None only where a stream was left early.

    `reasoning` and `tool_calls` were taken out of the text, where that was asked for.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish: Finish | None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def finish_reason(self) -> FinishReason | None:
        """How the output ended; None where its stream was left early."""
        return self.finish.reason if self.finish else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart:
    """Facts fixed when a generation began. `max_tokens` is the effective bound for each output.

    `num_truncated_tokens` were cut off the prompt; `prompt` is what the model saw, under echo.
    """

    seed: int
    replica: str
    model: str
    max_tokens: int
    warnings: tuple[str, ...] = ()
    num_truncated_tokens: int = 0
    prompt: Tokens | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The answer to one request: `outputs` in the order of their index, n of them.

    `text`, `reasoning`, `tool_calls`, `token_ids` and `finish_reason` are the first output's.
    """

    request_id: str
    outputs: tuple[Completion, ...]
    usage: Usage
    start: StreamStart | None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def text(self) -> str:
        """The first output's text; empty before anything arrived."""
        return self.outputs[0].text if self.outputs else ""

    @property
    def reasoning(self) -> str:
        """The first output's reasoning, under split_reasoning."""
        return self.outputs[0].reasoning if self.outputs else ""

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The first output's calls, under parse_tool_calls."""
        return self.outputs[0].tool_calls if self.outputs else ()

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The first output's ids."""
        return self.outputs[0].token_ids if self.outputs else ()

    @property
    def finish_reason(self) -> FinishReason | None:
        """How the first output ended; None where its stream was left early."""
        return self.outputs[0].finish_reason if self.outputs else None

    @property
    def seed(self) -> int | None:
        """The effective seed; None before the service said it."""
        return self.start.seed if self.start else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """A prompt as the model sees it; `text` is what was tokenized (a chat's rendered template)."""

    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """A vector for each prompt, in their order."""

    vectors: tuple[tuple[float, ...], ...]
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How likely one continuation is: the sum over its tokens, and each of them.

    `is_greedy` says whether each of its tokens is the likeliest one.
    """

    logprob: float
    tokens: tuple[TokenLogprob, ...]
    is_greedy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """How likely the continuations are, in their order."""

    scores: tuple[Score, ...]
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a request would meet now; `predicted_ttft_s` is None while nothing was measured."""

    prompt_tokens: int
    cached_tokens: int
    num_requests_ahead: int
    num_tokens_ahead: int
    predicted_ttft_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What is served; `max_sequence_tokens` bounds prompt plus output of one sequence."""

    model: str
    architecture: str
    max_sequence_tokens: int
    vocab_size: int
    num_tokenizer_ids: int
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    replica: str
    version: str
    max_outputs: int
    max_request_bytes: int
    has_structured_output: bool = False
    max_top_logprobs: int = 0
    embedding_size: int = 0
    default_sampling: SamplingParams = field(default_factory=SamplingParams)
