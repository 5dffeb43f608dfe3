"""Root-mean-square normalisation (arXiv:1910.07467). Every rank holds all of it.

Legend: N tokens, H features.
"""

from collections.abc import Iterator

import torch
from torch.nn import functional

from worker_svc.layers.linear import TensorKind
from worker_svc.layers.weight_shard import WeightShard, whole
from worker_svc.parallel.group import ParallelGroup


class RMSNorm:
    """x / sqrt(mean(x^2) + epsilon) * weight, over the last dimension, computed in float32."""

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float,
        kind: TensorKind,
        group: ParallelGroup | None = None,
    ) -> None:
        """`group`: the ranks whose parts `with_residual` sums."""
        self._group = group
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
        self, part: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add what the ranks' parts sum up to to the residual stream.

        Returns the normalised sum and the sum, [N, H] each, the same on every rank. May write into
        `part`.
        """
        if self._kernels is not None:
            return self._kernels.sum_add_rms_norm(part, residual, self.weight, epsilon=self.epsilon)
        summed = part if self._group is None else self._group.all_reduce(part)
        total = summed + residual
        return self(total), total
