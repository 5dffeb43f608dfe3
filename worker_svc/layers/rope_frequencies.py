"""Angle per position of each pair of features, for every kind of rope. Knows no position.

Legend: D head_dim; pair i turns by frequency[i] radians a position.
"""

import math

import torch

from worker_svc.models.rope_spec import LinearRope, Llama3Rope, RopeSpec, YarnRope


def inverse_frequencies(rope: RopeSpec, *, head_dim: int) -> torch.Tensor:
    """float32 [D/2] on the CPU."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / rope.theta**exponents
    if isinstance(rope, LinearRope):
        return plain / rope.factor
    if isinstance(rope, Llama3Rope):
        return _blend(plain, rope.factor, kept=_llama3_kept(rope, plain))
    if isinstance(rope, YarnRope):
        return _blend(plain, rope.factor, kept=_yarn_kept(rope, head_dim))
    return plain


def _blend(plain: torch.Tensor, factor: float, *, kept: torch.Tensor) -> torch.Tensor:
    """The kept share of each frequency as it is, the rest divided by the factor."""
    return plain * kept + plain / factor * (1.0 - kept)


def _llama3_kept(rope: Llama3Rope, plain: torch.Tensor) -> torch.Tensor:
    """Share by full turns within the original length: none below low_rotations, all above high."""
    rotations = rope.original_max_positions * plain / (2 * math.pi)
    return _ramp(rotations, low=rope.low_rotations, high=rope.high_rotations)


def _yarn_kept(rope: YarnRope, head_dim: int) -> torch.Tensor:
    """Share by index of the pair: all before the fast bound, none after the slow one."""

    def pair_turning(rotations: float) -> float:
        length = rope.original_max_positions / (rotations * 2 * math.pi)
        return head_dim * math.log(length) / (2 * math.log(rope.theta))

    low, high = pair_turning(rope.fast_rotations), pair_turning(rope.slow_rotations)
    if rope.rounds_range:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a division by zero
    pairs = torch.arange(head_dim // 2, dtype=torch.float32)
    return 1.0 - _ramp(pairs, low=low, high=high)


def _ramp(values: torch.Tensor, *, low: float, high: float) -> torch.Tensor:
    return ((values - low) / (high - low)).clamp(0.0, 1.0)
