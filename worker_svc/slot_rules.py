"""What one use of a slot asks beyond temperature and filters: read from its start, and checked.

Rules change or forbid logits; records tell how likely tokens were; pooling asks for a vector. Most
slots have none of it. Knows no plan, no row and no tensor.
"""

import enum
import math
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from octavo.internal.v1 import step_pb2
from worker_svc.batch_step import Float32s, Int32s

MOST_BAD_LENGTH = 1024
"""Most tokens of a sequence that may not appear."""
_BITS = 32


class Pooling(enum.Enum):
    """How hidden states become a vector."""

    NONE = step_pb2.SLOT_POOLING_UNSPECIFIED
    LAST = step_pb2.SLOT_POOLING_LAST
    MEAN = step_pb2.SLOT_POOLING_MEAN


class RulesFault(Exception):
    """A start's rules make no sense; names the field and the rule."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotRules:
    """Of one start of a slot: another start has another value, even with the same contents."""

    num_prompt_tokens: int
    history: Int32s  # all tokens known at the start; empty where nothing reads it
    repetition_penalty: float  # 1 is off
    frequency_penalty: float
    presence_penalty: float
    bias_ids: Int32s
    bias_values: Float32s
    allowed_words: Int32s  # bit i of word j allows id 32j + i; empty allows all
    bad_sequences: tuple[Int32s, ...]
    has_logprobs: bool
    num_top: int
    logprob_ids: Int32s
    prompt_records_from: int  # 0: none
    num_prompt_top: int
    pooling: Pooling

    @property
    def has_penalties(self) -> bool:
        """Whether logits depend on how often tokens came before."""
        penalties = (self.frequency_penalty, self.presence_penalty)
        return self.repetition_penalty != 1 or any(penalties)

    @property
    def reads_history(self) -> bool:
        """Whether logits depend on tokens that came before."""
        return self.has_penalties or any(one.size > 1 for one in self.bad_sequences)

    @property
    def has_edits(self) -> bool:
        """Whether any logit is changed or forbidden, but for the allowed ids."""
        return self.has_penalties or bool(self.bias_ids.size) or bool(self.bad_sequences)

    @property
    def num_record_words(self) -> int:
        """32-bit words of a generated token's record; 0: it has none."""
        return (2 + 2 * self.num_top + self.logprob_ids.size) if self.has_logprobs else 0

    def prompt_positions(self, start: int, end: int) -> range:
        """Positions of the prompt whose records a chunk at positions start to end brings."""
        if not self.prompt_records_from:
            return range(0)
        return range(
            max(start + 1, self.prompt_records_from), min(end, self.num_prompt_tokens - 1) + 1
        )


def read_rules(start: step_pb2.SlotStart, *, vocab_size: int) -> SlotRules | None:
    """The rules of a start, None when it has none. Raises RulesFault."""
    chosen = start.sampling
    bad_tokens = _ids(chosen.bad_sequence_tokens, "bad_sequence_tokens", vocab_size)
    rules = SlotRules(
        num_prompt_tokens=start.num_prompt_tokens,
        history=_ids(start.history, "history", vocab_size),
        repetition_penalty=chosen.repetition_penalty or 1.0,
        frequency_penalty=chosen.frequency_penalty,
        presence_penalty=chosen.presence_penalty,
        bias_ids=_ids(chosen.logit_bias_ids, "logit_bias_ids", vocab_size),
        bias_values=np.frombuffer(_words(chosen.logit_bias_values, "logit_bias_values"), "<f4"),
        allowed_words=_mask_of(_ids(chosen.allowed_token_ids, "allowed_token_ids", vocab_size)),
        bad_sequences=_sequences(bad_tokens, chosen.bad_sequence_lengths),
        has_logprobs=chosen.has_logprobs,
        num_top=chosen.num_top_logprobs,
        logprob_ids=_ids(chosen.logprob_token_ids, "logprob_token_ids", vocab_size),
        prompt_records_from=start.prompt_records_from,
        num_prompt_top=start.num_prompt_top_logprobs,
        pooling=Pooling(start.pooling),
    )
    _check(rules, vocab_size=vocab_size)
    is_plain = not (
        rules.has_edits
        or rules.allowed_words.size
        or rules.has_logprobs
        or rules.prompt_records_from
        or rules.pooling is not Pooling.NONE
    )
    return None if is_plain else rules


def _check(rules: SlotRules, *, vocab_size: int) -> None:
    penalties = (rules.repetition_penalty, rules.frequency_penalty, rules.presence_penalty)
    values = rules.bias_values
    checks = (
        (all(math.isfinite(one) for one in penalties), "sampling", "penalties must be finite"),
        (rules.repetition_penalty > 0, "repetition_penalty", "must be above 0"),
        (values.size == rules.bias_ids.size, "logit_bias_values", "must be one for each id"),
        (bool(np.isfinite(values).all()), "logit_bias_values", "must be finite"),
        (_ascends(rules.bias_ids), "logit_bias_ids", "must ascend"),
        (rules.num_top <= vocab_size, "num_top_logprobs", f"at most {vocab_size}"),
        (rules.num_prompt_top <= vocab_size, "num_prompt_top_logprobs", f"at most {vocab_size}"),
        (
            not rules.reads_history or rules.history.size >= rules.num_prompt_tokens,
            "history",
            "must hold the prompt where it is read",
        ),
        (
            not rules.prompt_records_from
            or rules.prompt_records_from < rules.num_prompt_tokens <= rules.history.size,
            "prompt_records_from",
            "must be within the prompt, which must be in history",
        ),
    )
    for holds, field, rule in checks:
        if not holds:
            _refuse(field, rule)


def _sequences(tokens: Int32s, lengths_column: bytes) -> tuple[Int32s, ...]:
    lengths = np.frombuffer(_words(lengths_column, "bad_sequence_lengths"), "<i4")
    if lengths.size == 0 and tokens.size == 0:
        return ()
    if lengths.size == 0 or lengths.min() < 1 or int(lengths.sum()) != tokens.size:
        _refuse("bad_sequence_lengths", "must be at least 1 each, together as many as the tokens")
    if lengths.max() > MOST_BAD_LENGTH:
        _refuse("bad_sequence_lengths", f"must be at most {MOST_BAD_LENGTH}")
    return tuple(np.split(tokens, np.cumsum(lengths)[:-1]))


def _mask_of(allowed: Int32s) -> Int32s:
    """Words up to the last allowed id."""
    if allowed.size == 0:
        return allowed
    words = np.zeros(int(allowed.max()) // _BITS + 1, np.uint32)
    np.bitwise_or.at(words, allowed // _BITS, np.uint32(1) << (allowed % _BITS).astype(np.uint32))
    return words.view(np.int32)


def _ids(column: bytes, field: str, vocab_size: int) -> Int32s:
    ids: npt.NDArray[np.int32] = np.frombuffer(_words(column, field), "<i4")
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
        _refuse(field, f"ids go from 0 to {vocab_size - 1}")
    return ids


def _words(column: bytes, field: str) -> bytes:
    if len(column) % 4:
        _refuse(field, "must hold whole 32-bit values")
    return column


def _ascends(ids: Int32s) -> bool:
    return bool((np.diff(ids) > 0).all())


def _refuse(field: str, rule: str) -> NoReturn:
    raise RulesFault(field, rule)
