"""The sampler's choice in float64, one row at a time, written apart from it: its oracle in tests.

The promise is that every token is the argmax of logits + its keyed noise, up to near ties: logits
differ in their last bits between batches and ranks. So a token is checked by its *margin*: how
far its perturbed logit lies below the best one. A filter's border is as soft as that: ids within
`slack` of it may or may not be kept.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_WORD = np.uint64(0xFFFFFFFF)
_GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True)
class ReferenceSampling:
    """How one token is chosen; off is top_k 0, top_p 1, min_p 0."""

    seed: int
    position: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    banned: frozenset[int] = field(default_factory=frozenset)
    num_tokenizer_ids: int | None = None
    history: tuple[int, ...] = ()
    num_prompt_tokens: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)
    allowed: frozenset[int] | None = None
    bad_sequences: tuple[tuple[int, ...], ...] = ()


def reference_noise(seed: int, position: int, num_ids: int) -> Floats:
    """float64 [num_ids]: the noise of ids 0.. as the noise file defines it."""
    low, high = np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)
    place = np.uint64(position)
    first = _scramble(place ^ _scramble(low ^ _scramble(high ^ np.uint64(0x9E3779B9))))
    second = _scramble(place ^ _scramble(high ^ _scramble(low ^ np.uint64(0x85EBCA6B))))
    ids = np.arange(num_ids, dtype=np.uint64)
    bits = _scramble((_scramble(ids ^ first) + second) & _WORD)
    odd = ((bits >> np.uint64(1)) | np.uint64(1)).astype(np.float32)
    v = np.minimum(odd.astype(np.float64) * 2.0**-31, 1.0 - 2.0**-24)
    return -np.log(-np.log1p(-v))


def perturbed_logits(logits: Floats, sampling: ReferenceSampling, *, slack: float = 0.0) -> Floats:
    """Logits + temperature * noise of the ids that are left, -inf for the others.

    `slack` widens every filter (narrows it, when negative).
    """
    left = _without_banned(logits, sampling)
    if sampling.temperature < _GREEDY_BELOW:
        return left
    kept = _kept(left, sampling, slack)
    noise = reference_noise(sampling.seed, sampling.position, logits.shape[0])
    return np.where(kept, left + sampling.temperature * noise, -np.inf)


def margin(
    logits: Floats, token: int, sampling: ReferenceSampling, *, slack: float = 1e-4
) -> float:
    """How far `token` lies below the best choice, in logits; inf when it was not allowed."""
    best = float(perturbed_logits(logits, sampling, slack=-slack).max())
    return best - float(perturbed_logits(logits, sampling, slack=slack)[token])


def _scramble(x: npt.NDArray[np.uint64] | np.uint64) -> npt.NDArray[np.uint64]:
    word = np.atleast_1d(x)
    word = word ^ (word >> np.uint64(16))
    word = (word * np.uint64(0x7FEB352D)) & _WORD
    word = word ^ (word >> np.uint64(15))
    word = (word * np.uint64(0x846CA68B)) & _WORD
    return word ^ (word >> np.uint64(16))


def _without_banned(logits: Floats, sampling: ReferenceSampling) -> Floats:
    left = _penalized(logits.astype(np.float64), sampling)
    left[list(_ends_of_bad_sequences(sampling))] = -np.inf
    if sampling.allowed is not None:
        left[[one for one in range(left.shape[0]) if one not in sampling.allowed]] = -np.inf
    left[list(sampling.banned)] = -np.inf
    if sampling.num_tokenizer_ids is not None:
        left[sampling.num_tokenizer_ids :] = -np.inf
    return left


def _penalized(left: Floats, sampling: ReferenceSampling) -> Floats:
    for token in set(sampling.history):
        factor = sampling.repetition_penalty
        left[token] = left[token] / factor if left[token] > 0 else left[token] * factor
    for token, count in Counter(sampling.history[sampling.num_prompt_tokens :]).items():
        left[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    for token, shift in sampling.bias.items():
        left[token] += shift
    return left


def _ends_of_bad_sequences(sampling: ReferenceSampling) -> set[int]:
    return {
        sequence[-1]
        for sequence in sampling.bad_sequences
        if sampling.history[len(sampling.history) - len(sequence) + 1 :] == sequence[:-1]
        and len(sequence) <= len(sampling.history) + 1
    }


def _kept(left: Floats, sampling: ReferenceSampling, slack: float) -> npt.NDArray[np.bool_]:
    scaled = (left - left.max()) / sampling.temperature
    order = np.argsort(-scaled, kind="stable")
    kept: npt.NDArray[np.bool_] = np.isfinite(scaled)
    if 0 < sampling.top_k < left.shape[0]:
        kept &= scaled >= scaled[order[sampling.top_k - 1]] - slack / sampling.temperature
        # the likeliest stays, however narrow the slack makes it
        kept |= scaled == scaled.max()
    if sampling.top_p < 1:
        weights = np.where(kept, np.exp(scaled), 0.0)[order]
        before = (np.cumsum(weights) - weights) / weights.sum()
        is_within = before < sampling.top_p + slack
        is_within[0] = True
        kept[order] &= is_within
    if sampling.min_p > 0:
        kept &= scaled >= np.log(sampling.min_p) - slack / sampling.temperature
    return kept
