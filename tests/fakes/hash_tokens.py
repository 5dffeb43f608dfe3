"""The hash-token model: the next token is a hash of all tokens before it. Pure functions.

    digest = xxh3_64(all tokens so far, as little-endian int32; seed=mix)
    mix    = 0 when greedy, else the sequence's seed XOR 0x9E3779B97F4A7C15
    token  = digest mod V, V = the ids that may be chosen

With `eos_every` N, a digest whose quotient (digest // V) is a multiple of N chooses the first stop
id instead. Below `min_position` an id that is a stop id is replaced by the next higher one that is
not, cyclically; a mask does the same with ids that it forbids.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

_SAMPLED_MIX = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True, kw_only=True)
class HashRule:
    """How one sequence chooses its tokens."""

    vocab_size: int
    """V: ids that may be chosen; at most what the tokenizer knows."""
    seed: int = 0
    temperature: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    min_position: int = 0
    eos_every: int = 0


def digest_of(history: npt.NDArray[np.int32], *, rule: HashRule) -> int:
    """The hash of all tokens so far."""
    mix = 0 if rule.temperature == 0 else rule.seed ^ _SAMPLED_MIX
    return xxhash.xxh3_64_intdigest(history.astype("<i4").tobytes(), seed=mix)


def choose_token(
    digest: int, *, position: int, rule: HashRule, allowed: npt.NDArray[np.bool_] | None = None
) -> int | None:
    """The token at `position`; None when no id is left. `allowed` [V] says which a mask allows."""
    stops = rule.stop_token_ids
    banned: Collection[int] = stops if position < rule.min_position else ()
    quotient, token = divmod(digest, rule.vocab_size)
    if rule.eos_every and stops and quotient % rule.eos_every == 0:
        token = stops[0]
    for _ in range(rule.vocab_size):
        if token not in banned and (allowed is None or bool(allowed[token])):
            return token
        token = (token + 1) % rule.vocab_size
    return None


def expected_tokens(
    prompt: Sequence[int],
    num_tokens: int,
    *,
    vocab_size: int,
    seed: int = 0,
    temperature: float = 0.0,
    stop_token_ids: Sequence[int] = (),
    min_position: int = 0,
    eos_every: int = 0,
) -> list[int]:
    """The stream of a prompt: `num_tokens` tokens, or up to and with the first stop id."""
    rule = HashRule(
        vocab_size=vocab_size,
        seed=seed,
        temperature=temperature,
        stop_token_ids=tuple(stop_token_ids),
        min_position=min_position,
        eos_every=eos_every,
    )
    stream: list[int] = []
    history = np.array([*prompt, *[0] * num_tokens], np.int32)
    for position in range(len(prompt), len(history)):
        token = choose_token(digest_of(history[:position], rule=rule), position=position, rule=rule)
        assert token is not None, "every id is a stop id below min_position"
        history[position] = token
        stream.append(token)
        if token in rule.stop_token_ids:
            break
    return stream
