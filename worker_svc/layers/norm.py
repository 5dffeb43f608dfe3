"""Root-mean-square normalisation (arXiv:1910.07467). Knows no rank: every rank holds all of it.

Legend: N tokens, H features.
"""

from collections.abc import Iterator

import torch
from torch.nn import functional

from worker_svc.layers.linear import TensorKind
from worker_svc.layers.weight_shard import WeightShard, whole


class RMSNorm:
    """x / sqrt(mean(x^2) + epsilon) * weight, over the last dimension, computed in float32."""

    def __init__(self, num_features: int, *, epsilon: float, kind: TensorKind) -> None:
        self._shape = (num_features,)
        self._kernels = kind.kernels
        self.epsilon = epsilon
        self.weight = torch.empty(num_features, dtype=kind.dtype, device=kind.device)  # [H]

    def shards(self, name: str) -> Iterator[WeightShard]:
        """The checkpoint tensor `name`.weight."""
        yield whole(f"{name}.weight", self.weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., H]; [N, H] where the device has its own kernel."""
        if self._kernels is not None:
            return self._kernels.rms_norm(x, self.weight, epsilon=self.epsilon)
        return functional.rms_norm(x, self._shape, self.weight, self.epsilon)

    def with_residual(
        self, x: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add x to the residual stream; return the normalised sum and the sum: [N, H] each."""
        if self._kernels is not None:
            return self._kernels.add_rms_norm(x, residual, self.weight, epsilon=self.epsilon)
        total = x + residual
        return self(total), total
