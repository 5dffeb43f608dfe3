"""Keyed Gumbel noise on the device: the function of worker_svc/execution/noise.py, nothing else.

Integers are bit for bit the same; the float part agrees within 6e-6, far below what a logit's own
format resolves. In uint32 products wrap and >> is logical, so no masks are needed.

At 256 rows sampling is bound by arithmetic, not by reading logits, and exact logarithms would be
two thirds of it. So both are the device's own: within 2^-22 of log2, absolute near 1 and relative
elsewhere. Near 1 that is not enough for the inner one, where a series takes over.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from worker_svc.kernels.jit import kernel

_IS_INTERPRETED: tl.constexpr = tl.constexpr(triton.knobs.runtime.interpret)


@kernel()
def mix(x: tl.tensor) -> tl.tensor:
    """The lowbias32 finaliser of uint32."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@kernel()
def noise_keys(seed: tl.tensor, position: tl.tensor) -> tl.tensor:
    """Both uint32 keys of an int64 seed (the bits of an unsigned one) and a position."""
    low, high = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    position = position.to(tl.uint32)
    first = mix(position ^ mix(low ^ mix(high ^ 0x9E3779B9)))
    second = mix(position ^ mix(high ^ mix(low ^ 0x85EBCA6B)))
    return first, second


@kernel()
def noise_bits(first: tl.tensor, second: tl.tensor, ids: tl.tensor) -> tl.tensor:
    """32 random bits of every id as uint32, from a row's two keys."""
    return mix(mix(ids.to(tl.uint32) ^ first) + second)


@kernel()
def gumbel_noise(first: tl.tensor, second: tl.tensor, ids: tl.tensor) -> tl.tensor:
    """float32 noise of every id, from a row's two keys."""
    odd = ((noise_bits(first, second, ids) >> 1) | 1).to(
        tl.int32
    )  # below 2^31: a signed conversion is one instruction
    v = tl.minimum(odd.to(tl.float32) * (1.0 / 2147483648.0), 1.0 - 1.0 / 16777216.0)
    # -log1p(-v): six terms leave 6e-8 of it below 1/8; above, 1 - v and its log are good to 2e-6
    tail = 1.0 / 5.0 + v * (1.0 / 6.0 + v * (1.0 / 7.0))
    series = v + v * v * (1.0 / 2.0 + v * (1.0 / 3.0 + v * (1.0 / 4.0 + v * tail)))
    return -_log(tl.where(v < 0.125, series, -_log(1.0 - v)))


@kernel()
def _log(x: tl.tensor) -> tl.tensor:
    # the interpreter knows no device function; its logarithm is exact
    return tl.log(x) if _IS_INTERPRETED else libdevice.fast_logf(x)
