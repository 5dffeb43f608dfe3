"""Fields that change or forbid single logits, and those that ask for log probabilities.

Knows nothing of prompts. Ranges are those of protos/octavo/v1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.limits import RequestLimits
from scheduler_svc.frontend.model import DefaultSampling
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from scheduler_svc.frontend.token_rules import TokenRules, WantedRecords
from scheduler_svc.frontend.violations import Violations

# 0.01 as the float32 that a message holds
LEAST_REPETITION_PENALTY, MOST_REPETITION_PENALTY = 0.009999999776482582, 100.0
MAX_PENALTY = 2.0
MAX_BIASED_IDS = 1024
MAX_BIAS = 100.0
MAX_ALLOWED_IDS = 65_536
MAX_BAD_WORDS = 256
MAX_BAD_WORD_BYTES = 1024
MAX_LOGPROB_IDS = 128
_FIELD = "generation.sampling"
_OUTPUT = "generation.output"
# Under a millisecond of work; more would hold up every stream of this process.
_MAX_INLINE_BYTES = 2048

Encode = Callable[[str], Sequence[int]]


async def parse_rules(
    sampling: api.SamplingParams,
    *,
    defaults: DefaultSampling,
    tokenizer: Tokenizer,
    limits: RequestLimits,
    violations: Violations,
) -> TokenRules:
    """The changes of logits that are asked for."""

    def penalty(name: str, value: float) -> float:
        field = f"{_FIELD}.{name}"
        return violations.number(field, value, least=-MAX_PENALTY, most=MAX_PENALTY)

    repetition = defaults.repetition_penalty
    if sampling.HasField("repetition_penalty"):
        repetition = sampling.repetition_penalty
    return TokenRules(
        repetition_penalty=violations.number(
            f"{_FIELD}.repetition_penalty",
            repetition,
            least=LEAST_REPETITION_PENALTY,
            most=MOST_REPETITION_PENALTY,
        ),
        frequency_penalty=penalty("frequency_penalty", sampling.frequency_penalty),
        presence_penalty=penalty("presence_penalty", sampling.presence_penalty),
        logit_bias=_logit_bias(sampling, limits, violations),
        allowed_token_ids=_allowed_ids(
            sampling.allowed_token_ids,
            limits,
            num_tokenizer_ids=tokenizer.num_ids,
            violations=violations,
        ),
        bad_sequences=await _bad_sequences(
            sampling.bad_words, tokenizer, vocab_size=limits.vocab_size, violations=violations
        ),
    )


def check_choice_is_left(
    rules: TokenRules, *, end_token_ids: Collection[int], min_tokens: int, violations: Violations
) -> None:
    """Notes allowed ids of which none may ever be chosen as an output's first token."""
    if not rules.allowed_token_ids:
        return
    forbidden = {sequence[0] for sequence in rules.bad_sequences if len(sequence) == 1}
    if min_tokens > 0:
        forbidden.update(end_token_ids)
    if forbidden.issuperset(rules.allowed_token_ids):
        rule = "must hold an id that neither bad_words nor min_tokens forbids"
        violations.add(f"{_FIELD}.allowed_token_ids", rule)


def parse_records(
    output: api.OutputParams, *, limits: RequestLimits, violations: Violations
) -> WantedRecords:
    """The log probabilities that are asked for."""

    def count(name: str, value: int) -> int:
        field = f"{_OUTPUT}.{name}"
        return violations.integer(field, value, least=0, most=limits.max_top_logprobs)

    has_top, has_prompt_top = (
        output.HasField("top_logprobs"),
        output.HasField("prompt_top_logprobs"),
    )
    num_top = count("top_logprobs", output.top_logprobs) if has_top else None
    num_prompt_top = (
        count("prompt_top_logprobs", output.prompt_top_logprobs) if has_prompt_top else None
    )
    field = f"{_OUTPUT}.logprob_token_ids"
    ids: Sequence[int] = output.logprob_token_ids
    if ids and not has_top:
        violations.add(field, "needs top_logprobs")
    if len(ids) > MAX_LOGPROB_IDS:
        violations.add(field, f"must have at most {MAX_LOGPROB_IDS} ids, has {len(ids)}")
        ids = ()
    return WantedRecords(
        num_top=num_top,
        token_ids=tuple(violations.token_ids(field, ids, vocab_size=limits.vocab_size)),
        num_prompt_top=num_prompt_top,
    )


def _logit_bias(
    sampling: api.SamplingParams, limits: RequestLimits, violations: Violations
) -> tuple[tuple[int, float], ...]:
    field, bias = f"{_FIELD}.logit_bias", sampling.logit_bias
    if len(bias) > MAX_BIASED_IDS:
        violations.add(field, f"must have at most {MAX_BIASED_IDS} ids, has {len(bias)}")
        return ()
    known = []
    for token_id, shift in sorted(bias.items()):
        path = f"{field}[{token_id}]"
        if not 0 <= token_id < limits.vocab_size:
            violations.add(path, f"the id must be 0 to {limits.vocab_size - 1}")
        known.append((token_id, violations.number(path, shift, least=-MAX_BIAS, most=MAX_BIAS)))
    return tuple(known)


def _allowed_ids(
    ids: Sequence[int], limits: RequestLimits, *, num_tokenizer_ids: int, violations: Violations
) -> tuple[int, ...]:
    field = f"{_FIELD}.allowed_token_ids"
    if len(ids) > MAX_ALLOWED_IDS:
        violations.add(field, f"must have at most {MAX_ALLOWED_IDS} ids, has {len(ids)}")
        return ()
    checked = violations.token_ids(field, ids, vocab_size=limits.vocab_size)
    if checked and min(checked) >= num_tokenizer_ids:
        rule = f"must hold an id that the tokenizer knows: one below {num_tokenizer_ids}"
        violations.add(field, rule)
    return tuple(sorted(set(checked)))


async def _bad_sequences(
    words: Sequence[str], tokenizer: Tokenizer, *, vocab_size: int, violations: Violations
) -> tuple[tuple[int, ...], ...]:
    field = f"{_FIELD}.bad_words"
    if len(words) > MAX_BAD_WORDS:
        violations.add(field, f"must have at most {MAX_BAD_WORDS} words, has {len(words)}")
        return ()
    sizes = [len(word.encode()) for word in words]
    for index, size in enumerate(sizes):
        if not 1 <= size <= MAX_BAD_WORD_BYTES:
            rule = f"must have 1 to {MAX_BAD_WORD_BYTES} bytes, has {size}"
            violations.add(f"{field}[{index}]", rule)
            return ()

    def encode(text: str) -> Sequence[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    if sum(sizes) <= _MAX_INLINE_BYTES:
        found = _sequences_of(words, encode)
    else:
        found = await asyncio.to_thread(_sequences_of, words, encode)
    # what holds an id that the model has no logit for cannot appear
    return tuple(one for one in found if one and max(one) < vocab_size)


def _sequences_of(words: Sequence[str], encode: Encode) -> list[tuple[int, ...]]:
    """Each word in its own tokens, with and without a space before it."""
    spelled = (form for word in words for form in (word, f" {word.lstrip(' ')}"))
    return list(dict.fromkeys(tuple(encode(form)) for form in dict.fromkeys(spelled)))
