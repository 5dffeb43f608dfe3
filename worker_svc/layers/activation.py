"""SiLU(gate) * up, the middle of the feed-forward layer (arXiv:2002.05202).

Legend: N tokens, F features of this rank.
"""

import torch
from torch.nn import functional

from worker_svc.layers.fused import LayerKernels


class SiluAndMul:
    """The first half of the features gates the second."""

    def __init__(self, kernels: LayerKernels | None = None) -> None:
        self._kernels = kernels

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 2F] -> [N, F]."""
        if self._kernels is not None:
            return self._kernels.silu_and_mul(x)
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)
