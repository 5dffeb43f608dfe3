"""Made-up tokens: a pure function of a segment's key and an index. Knows no request.

Prompts are made of segments (an app's instructions, a question, an answer), so that two prompts
share exactly the tokens of the segments that they begin with.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

VOCAB_SIZE = 151_936
EOS = 0

_UInt64s = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens. Equal keys mean equal tokens; the longer of two continues the shorter."""

    key: int  # 32 bits
    num_tokens: int


def tokens_at(keys: _UInt64s, indexes: _UInt64s) -> npt.NDArray[np.int32]:
    """The tokens at indexes of segments; never EOS. (The mixing steps are those of splitmix64.)"""
    mixed = (keys << np.uint64(32)) + indexes + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed % np.uint64(VOCAB_SIZE - 1)).astype(np.int32) + 1


def prompt_tokens(segments: Iterable[Segment], answers: frozenset[int]) -> npt.NDArray[np.int32]:
    """All tokens of a prompt. Segments with a key among `answers` end with EOS."""
    parts = []
    for segment in segments:
        indexes = np.arange(segment.num_tokens, dtype=np.uint64)
        part = tokens_at(np.full(segment.num_tokens, segment.key, np.uint64), indexes)
        if segment.key in answers:
            part[-1] = EOS
        parts.append(part)
    return np.concatenate(parts)


def chain_key(parent: int, segment: Segment) -> int:
    """Names the text that ends with a segment, behind the text that `parent` names."""
    return hash((parent, segment.key, segment.num_tokens))


def piece_keys(segments: Iterable[Segment], *, piece_tokens: int) -> list[int]:
    """Names of a prompt's first pieces: equal for two prompts as far as their tokens are."""
    keys: list[int] = []
    parent, start = 0, 0
    for segment in segments:
        stop = start + segment.num_tokens
        first = start // piece_tokens + 1
        cuts = range(first * piece_tokens, stop + 1, piece_tokens)
        keys += [hash((parent, segment.key, cut - start)) for cut in cuts]
        parent, start = chain_key(parent, segment), stop
    return keys
