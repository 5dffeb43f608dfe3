"""A request's rules and records between messages and the core's values.

The rules travel to the workers unread: RequestSampling and step.Sampling have the same fields under
the same numbers. What is checked here is what a worker would otherwise refuse, at every start anew.
"""

import math
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from octavo.internal.v1 import engine_pb2 as engine
from octavo.internal.v1 import step_pb2 as step
from scheduler_svc.core.records import Pooling, RecordWishes
from scheduler_svc.core.refusals import InvalidField
from scheduler_svc.core.request import SamplingParams

_Plain = Literal["temperature", "top_k", "top_p", "min_p", "seed"]
_PLAIN: tuple[_Plain, ...] = get_args(_Plain)
_ID_COLUMNS = ("logit_bias_ids", "allowed_token_ids", "bad_sequence_tokens", "logprob_token_ids")

_POOLINGS = {
    engine.REQUEST_POOLING_LAST: Pooling.LAST,
    engine.REQUEST_POOLING_MEAN: Pooling.MEAN,
}
_REQUEST_POOLINGS = {pooling: number for number, pooling in _POOLINGS.items()}
_SLOT_POOLINGS = {
    Pooling.LAST: step.SLOT_POOLING_LAST,
    Pooling.MEAN: step.SLOT_POOLING_MEAN,
}


def decode_sampling(sampling: engine.RequestSampling) -> SamplingParams:
    """How tokens are chosen. Raises InvalidField."""
    rules = engine.RequestSampling()
    rules.CopyFrom(sampling)
    for name in _PLAIN:
        rules.ClearField(name)
    if rules.repetition_penalty == 1:
        rules.ClearField("repetition_penalty")
    columns = {name: _int32s(getattr(rules, name), name) for name in _ID_COLUMNS}
    lengths = _int32s(rules.bad_sequence_lengths, "bad_sequence_lengths")
    _check(rules, columns["logit_bias_ids"], columns["bad_sequence_tokens"], lengths)
    penalties = (rules.repetition_penalty, rules.frequency_penalty, rules.presence_penalty)
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
        rules=rules.SerializeToString(),
        needs_history=any(penalties) or bool((lengths > 1).any()),
        largest_id=max(int(column.max(initial=-1)) for column in columns.values()),
    )


def encode_sampling(sampling: SamplingParams) -> engine.RequestSampling:
    """The same as a message."""
    message = engine.RequestSampling.FromString(sampling.rules)
    for name in _PLAIN:
        setattr(message, name, getattr(sampling, name))
    return message


def decode_wishes(submit: engine.Submit) -> RecordWishes:
    """Which records a request wants."""
    sampling = submit.sampling
    token_words = 0
    if sampling.has_logprobs:
        token_words = 2 + 2 * sampling.num_top_logprobs + len(sampling.logprob_token_ids) // 4
    return RecordWishes(
        token_words=token_words,
        prompt_from=submit.prompt_records_from,
        num_prompt_top=submit.num_prompt_top_logprobs,
        pooling=_POOLINGS.get(submit.pooling),
    )


def encode_wishes(wishes: RecordWishes, submit: engine.Submit) -> None:
    """Fills in what the sampling does not say."""
    submit.prompt_records_from = wishes.prompt_from
    submit.num_prompt_top_logprobs = wishes.num_prompt_top
    if wishes.pooling is not None:
        submit.pooling = _REQUEST_POOLINGS[wishes.pooling]


def slot_pooling(pooling: Pooling | None) -> step.SlotPooling.ValueType:
    """The workers' word for it."""
    return step.SLOT_POOLING_UNSPECIFIED if pooling is None else _SLOT_POOLINGS[pooling]


def _check(
    rules: engine.RequestSampling,
    biased: npt.NDArray[np.int32],
    bad_tokens: npt.NDArray[np.int32],
    bad_lengths: npt.NDArray[np.int32],
) -> None:
    numbers = (rules.repetition_penalty, rules.frequency_penalty, rules.presence_penalty)
    shifts = np.frombuffer(rules.logit_bias_values, "<f4") if biased.size else np.zeros(0, "<f4")
    checks = (
        (len(rules.logit_bias_values) == 4 * biased.size, "logit_bias_values", "one for each id"),
        (bool(np.isfinite(shifts).all()), "logit_bias_values", "must be finite"),
        (_ascends(biased), "logit_bias_ids", "must ascend"),
        (
            _ascends(np.frombuffer(rules.allowed_token_ids, "<i4")),
            "allowed_token_ids",
            "must ascend",
        ),
        (
            bool((bad_lengths >= 1).all()) and int(bad_lengths.sum()) == bad_tokens.size,
            "bad_sequence_lengths",
            "must be at least 1 each, and together as many as bad_sequence_tokens",
        ),
        (all(math.isfinite(number) for number in numbers), "sampling", "penalties must be finite"),
        (rules.repetition_penalty >= 0, "repetition_penalty", "must not be negative"),
    )
    for holds, field, rule in checks:
        if not holds:
            raise InvalidField(field, rule)


def _ascends(ids: npt.NDArray[np.int32]) -> bool:
    return bool((np.diff(ids) > 0).all())


def _int32s(column: bytes, name: str) -> npt.NDArray[np.int32]:
    if len(column) % 4:
        raise InvalidField(name, f"must be int32 values, got {len(column)} bytes")
    ids = np.frombuffer(column, "<i4")
    if ids.size and ids.min() < 0:
        raise InvalidField(name, "must not be negative")
    return ids
