"""What a service answers, as frozen values. Knows nothing of how it was asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

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
class Delta:
    """The news of one output since the previous delta of the same output.

    `text` and `token_ids` only ever append; `first_token_index` is the place of the first id among
    the output's tokens; `finish` is there in the last delta only; `usage` counts so far.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    first_token_index: int
    finish: Finish | None
    usage: Usage

    @property
    def finish_reason(self) -> FinishReason | None:
        """How the output ended; None while it goes on."""
        return self.finish.reason if self.finish else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One output: its whole text and ids. `finish` is None only where a stream was left early."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish: Finish | None

    @property
    def finish_reason(self) -> FinishReason | None:
        """How the output ended; None where its stream was left early."""
        return self.finish.reason if self.finish else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart:
    """Facts fixed when a generation began. `max_tokens` is the effective bound for each output."""

    seed: int
    replica: str
    model: str
    max_tokens: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The answer to one request: `outputs` in the order of their index, n of them.

    `text`, `token_ids` and `finish_reason` are those of the first output.
    """

    request_id: str
    outputs: tuple[Completion, ...]
    usage: Usage
    start: StreamStart | None

    @property
    def text(self) -> str:
        """The first output's text; empty before anything arrived."""
        return self.outputs[0].text if self.outputs else ""

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
    default_sampling: SamplingParams = field(default_factory=SamplingParams)
