"""Sizes that graphs are captured for. Knows numbers alone.

A step runs in the smallest bucket that holds it; what is left over is padding. Steps of decode rows
are the hot ones and get narrow buckets: a wasted row there is read and multiplied like any other.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

_DECODE_STEPS = ((8, 256), (16, 512), (32, 1024), (64, 65536))
_SMALL_TOKEN_SIZES = (16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
_LARGE_TOKEN_STEP = 256
_MOST_TOKENS = 2048
_SAMPLE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class Buckets:
    """Ascending sizes."""

    sizes: tuple[int, ...]

    @classmethod
    def of(cls, sizes: Iterable[int]) -> Self:
        """The sizes, each once."""
        return cls(tuple(sorted(set(sizes))))

    def holding(self, count: int) -> int | None:
        """The smallest size that holds `count`; None when none does."""
        index = bisect_left(self.sizes, count)
        return self.sizes[index] if index < len(self.sizes) else None


def decode_buckets(most_rows: int) -> Buckets:
    """1, 2, 4, 8, every 8th to 256, every 16th to 512 and so on; `most_rows` is one of them."""
    sizes, size = [1, 2, 4, 8], 8
    for width, last in _DECODE_STEPS:
        while size < min(last, most_rows):
            size += width
            sizes.append(size)
    return Buckets.of([size for size in sizes if size < most_rows] + [most_rows])


def token_buckets(most_tokens: int) -> Buckets:
    """Sizes of mixed and prefill steps, up to 2,048 tokens.

    Measured on an H200, Qwen3-0.6B: 2,048 tokens launched piece by piece take 8.6 ms, all of it
    the host's; larger steps keep the device busy long enough.
    """
    large = range(_SMALL_TOKEN_SIZES[-1], _MOST_TOKENS + 1, _LARGE_TOKEN_STEP)
    return Buckets.of(size for size in (*_SMALL_TOKEN_SIZES, *large) if size <= most_tokens)


def sample_buckets(most_rows: int) -> Buckets:
    """Rows that choose a token after a mixed step; `most_rows` is one of them."""
    return Buckets.of([size for size in _SAMPLE_SIZES if size < most_rows] + [most_rows])
