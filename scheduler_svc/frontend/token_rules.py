"""What a valid request asks of its tokens beyond temperature and filters, in the core's words.

Rules change or forbid logits; records tell how likely tokens were. Frozen, resolved, in range.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.internal.v1 import engine_pb2 as engine


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """Changes of logits; the defaults are off."""

    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # by ascending id
    allowed_token_ids: tuple[int, ...] = ()  # ascending; empty allows all
    bad_sequences: tuple[tuple[int, ...], ...] = ()

    def write(self, sampling: engine.RequestSampling) -> None:
        """Fills in its part of a message."""
        sampling.repetition_penalty = self.repetition_penalty
        sampling.frequency_penalty = self.frequency_penalty
        sampling.presence_penalty = self.presence_penalty
        sampling.logit_bias_ids = _int32s([token_id for token_id, _ in self.logit_bias])
        sampling.logit_bias_values = array("f", [shift for _, shift in self.logit_bias]).tobytes()
        sampling.allowed_token_ids = _int32s(self.allowed_token_ids)
        joined = [token_id for sequence in self.bad_sequences for token_id in sequence]
        sampling.bad_sequence_tokens = _int32s(joined)
        sampling.bad_sequence_lengths = _int32s([len(one) for one in self.bad_sequences])


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRecords:
    """Which log probabilities are told; None: none."""

    num_top: int | None = None
    token_ids: tuple[int, ...] = ()
    num_prompt_top: int | None = None

    def write(self, submit: engine.Submit, *, num_prompt_tokens: int) -> None:
        """Fills in its part of a message."""
        if self.num_top is not None:
            submit.sampling.has_logprobs = True
            submit.sampling.num_top_logprobs = self.num_top
            submit.sampling.logprob_token_ids = _int32s(self.token_ids)
        # of a prompt's first token there is nothing to tell
        if self.num_prompt_top is not None and num_prompt_tokens > 1:
            submit.prompt_records_from = 1
            submit.num_prompt_top_logprobs = self.num_prompt_top


NO_RULES = TokenRules()
NO_RECORDS = WantedRecords()


def _int32s(values: Sequence[int]) -> bytes:
    return array("i", values).tobytes()
