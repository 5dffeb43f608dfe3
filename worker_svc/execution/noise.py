"""Gumbel noise keyed by (seed, absolute position, vocabulary id). Knows no batch and no shard.

Every value is a pure function of its key, so it is the same in any batch, after preemption and on
any number of ranks. All integers are 32 bits wide and wrap; >> is logical:

    mix(x):  x ^= x >> 16;  x *= 0x7FEB352D;  x ^= x >> 15;  x *= 0x846CA68B;  x ^= x >> 16
    first  = mix(position ^ mix(seed_low  ^ mix(seed_high ^ 0x9E3779B9)))
    second = mix(position ^ mix(seed_high ^ mix(seed_low  ^ 0x85EBCA6B)))
    bits   = mix(mix(id ^ first) + second)
    v      = min(float32((bits >> 1) | 1) * 2^-31, 1 - 2^-24)
    noise  = -log(-log1p(-v))

`mix` is the "lowbias32" finaliser found by C. Wellons' search (public domain), every bit of which
depends on every bit of x. v has 31 bits where noise is large, which is where rare tokens win; 1 -
v is exact in float32 where noise is small. noise lies within -2.82..21.49.
"""

import torch

_SHIFTS = (16, 15, 16)
_FACTORS = (0x7FEB352D, 0x846CA68B - (1 << 32))  # as signed 32 bits
_FIRST_SALT = 0x9E3779B9 - (1 << 32)
_SECOND_SALT = 0x85EBCA6B - (1 << 32)
_LARGEST_V = 1.0 - 2.0**-24


def noise_keys(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """int32 [rows, 2] from int64 [rows] seeds (the bits of an unsigned one) and int32 [rows]."""
    low, high = _low_word(seeds), _low_word(seeds >> 32)
    first = _mix(positions ^ _mix(low ^ _mix(high ^ _FIRST_SALT)))
    second = _mix(positions ^ _mix(high ^ _mix(low ^ _SECOND_SALT)))
    return torch.stack((first, second), dim=1)


def noise_bits(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """int32 [rows, ids]: 32 random bits of each key [rows, 2] and id, int32 [ids]."""
    bits = _mix_in_place(ids ^ keys[:, :1]).add_(keys[:, 1:])
    return _mix_in_place(bits)


def gumbel_noise(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """float32 [rows, ids]."""
    bits = noise_bits(keys, ids)
    odd = bits.bitwise_right_shift_(1).bitwise_and_(0x7FFFFFFF).bitwise_or_(1)
    v = odd.float().mul_(2.0**-31).clamp_(max=_LARGEST_V)
    return v.neg_().log1p_().neg_().log_().neg_()


def _low_word(values: torch.Tensor) -> torch.Tensor:
    """The low 32 bits of int64, as int32."""
    return (((values & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000).int()


def _mix(x: torch.Tensor) -> torch.Tensor:
    return _mix_in_place(x.clone())


def _mix_in_place(x: torch.Tensor) -> torch.Tensor:
    for shift, factor in zip(_SHIFTS, (*_FACTORS, None), strict=True):
        # torch shifts arithmetically; the mask makes it logical
        x.bitwise_xor_((x >> shift).bitwise_and_((1 << (32 - shift)) - 1))
        if factor is not None:
            x.mul_(factor)
    return x
