"""How tokens are chosen and when an output ends, as users write it.

Judges no value: the service does, which knows the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict


class SamplingOptions(TypedDict, total=False):
    """The fields of SamplingParams as keyword arguments of a call."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    n: int
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float]
    allowed_token_ids: Sequence[int]
    bad_words: Sequence[str]
    max_tokens: int
    min_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop: bool
    ignore_eos: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling and stopping of one request. None means the model's default (`Client.model_info`).

    temperature: divides the logits; 0 is greedy. Range 0 to 100.
    top_k: keeps the k most likely tokens; 0 and -1 switch it off.
    top_p: keeps the smallest set of tokens whose probability reaches p; 1 is off.
    min_p: drops tokens less likely than min_p times the most likely one; 0 is off.
    seed: seed of the noise; drawn by the service when None, and reported in the result.
    n: outputs for the prompt.
    repetition_penalty: divides positive, multiplies negative logits of tokens in prompt or output.
    frequency_penalty: subtracted from a token's logit for each time that the output has it.
    presence_penalty: subtracted once from the logits of tokens that the output has.
    logit_bias: added to the logits of single ids.
    allowed_token_ids: the only ids that may be chosen.
    bad_words: texts that may not appear in their own tokens, with or without a space before.
    max_tokens: most tokens of an output; clamped to what fits after the prompt.
    min_tokens: fewest tokens before an end token or stop id may be chosen.
    stop: strings that end an output.
    stop_token_ids: ids that end an output.
    include_stop: leaves the stop string, or the stop token's text, in the text.
    ignore_eos: treats the model's end ids as ordinary tokens.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] = ()
    bad_words: Sequence[str] = ()
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop: bool | None = None
    ignore_eos: bool | None = None

    def __post_init__(self) -> None:
        """Turns sequences into tuples, so that the value stays as it is and can be compared."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        words = (self.bad_words,) if isinstance(self.bad_words, str) else tuple(self.bad_words)
        object.__setattr__(self, "bad_words", words)
        for name in ("stop_token_ids", "allowed_token_ids"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
