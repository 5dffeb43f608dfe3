"""SiLU(gate) * up, the middle of the feed-forward layer (arXiv:2002.05202).

Legend: N tokens, F features of this rank.
"""

import torch
from torch.nn import functional


class SiluAndMul:
    """The first half of the features gates the second."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 2F] -> [N, F]."""
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)
