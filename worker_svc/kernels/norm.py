"""RMS norm with and without the residual sum before it, in one read. Knows no layer.

Legend: N tokens, H features.

One program takes one token: its H features stay in registers between the sum, the mean of the
squares and the result, so that memory is read once and written twice. 8 values a thread and read
make 16-byte accesses in bf16.
"""

import torch
import triton
import triton.language as tl

from worker_svc.kernels.jit import kernel

_FEATURES_PER_WARP = 256
_MOST_WARPS = 16


def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, epsilon: float) -> torch.Tensor:
    """The norm of [N, H]: x / sqrt(mean(x^2) + epsilon) * weight, in float32, rounded once."""
    out = torch.empty_like(x)
    _launch(x, None, weight, out=out, total=None, epsilon=epsilon)
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of x + residual, and that sum, [N, H] each.

    The sum is rounded before the norm reads it, as it would be by two kernels.
    """
    out, total = torch.empty_like(x), torch.empty_like(residual)
    _launch(x, residual, weight, out=out, total=total, epsilon=epsilon)
    return out, total


def warps_for(padded_features: int) -> int:
    """Warps of a program that keeps one token in registers."""
    return min(max(padded_features // _FEATURES_PER_WARP, 1), _MOST_WARPS)


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    *,
    out: torch.Tensor,
    total: torch.Tensor | None,
    epsilon: float,
) -> None:
    num_tokens, num_features = x.shape
    if num_tokens == 0:
        return
    assert x.is_contiguous()
    assert residual is None or residual.is_contiguous()
    padded = triton.next_power_of_2(num_features)
    _norm[(num_tokens,)](
        x,
        x if residual is None else residual,
        weight,
        out,
        out if total is None else total,
        epsilon=epsilon,
        has_residual=residual is not None,
        num_features=num_features,
        padded_features=padded,
        num_warps=warps_for(padded),
    )


@kernel()
def _norm(
    x_ptr: tl.tensor,
    residual_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    total_ptr: tl.tensor,
    epsilon: tl.constexpr,
    has_residual: tl.constexpr,
    num_features: tl.constexpr,
    padded_features: tl.constexpr,
) -> None:
    feature = tl.arange(0, padded_features)
    is_feature = feature < num_features
    offsets = tl.program_id(0).to(tl.int64) * num_features + feature
    x = tl.load(x_ptr + offsets, mask=is_feature, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + feature, mask=is_feature, other=0.0).to(tl.float32)
    if has_residual:
        x += tl.load(residual_ptr + offsets, mask=is_feature, other=0.0).to(tl.float32)
        rounded = x.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + offsets, rounded, mask=is_feature)
        x = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / num_features + epsilon)
    tl.store(out_ptr + offsets, x * scale * weight, mask=is_feature)
