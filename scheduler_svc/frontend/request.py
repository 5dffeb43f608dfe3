"""A generation request once it is valid. Frozen; everything is resolved and in range.

Made by `parse.RequestParser`; nothing else needs to check a field again. Of messages it knows only
the core's names for kinds of end.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.frontend.text.reasoning import REASONING_MARKS
from scheduler_svc.frontend.text.tool_calls import CALL_MARKS
from scheduler_svc.frontend.token_rules import NO_RECORDS, NO_RULES, TokenRules, WantedRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen; `temperature` 0 is greedy, `top_k` 0 is off."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRules:
    """What an output's text depends on beside its tokens."""

    stop_strings: tuple[str, ...]
    include_stop: bool
    skip_special_tokens: bool
    min_tokens: int
    end_token_ids: frozenset[int]  # model's and request's: each ends an output once it may
    stream_interval: int
    split_reasoning: bool = False
    parse_tool_calls: bool = False
    starts_in_reasoning: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """Tokens that are read, however special they are."""
        if self.parse_tool_calls:
            return (*REASONING_MARKS, *CALL_MARKS)
        return REASONING_MARKS if self.split_reasoning else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedEnd:
    """How an output ended that the caller has whole."""

    reason: engine.EndReason.ValueType
    stop_token_id: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReceivedOutput:
    """What the caller has of one output."""

    token_ids: array[int]
    end: ReceivedEnd | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WantedForm:
    """The form of the outputs, and the field that it came from."""

    field: str
    grammar: engine.Grammar


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ParsedRequest:
    """A valid request; durations are whole milliseconds, 0 where there is none."""

    request_id: str
    prompt_token_ids: array[int]
    sampling: Sampling
    num_outputs: int
    max_tokens: int  # 0: as many as fit
    min_tokens: int
    eos_token_ids: tuple[int, ...]
    stop_token_ids: tuple[int, ...]
    text_rules: TextRules
    priority: int
    time_limit_ms: int
    keep_for_ms: int
    skip_cache_read: bool
    skip_cache_store: bool
    received: tuple[ReceivedOutput, ...]  # empty, or num_outputs entries
    age_ms: int
    warnings: tuple[str, ...]
    body_digest: bytes
    blob: bytes
    rules: TokenRules = NO_RULES
    records: WantedRecords = NO_RECORDS
    form: WantedForm | None = None
