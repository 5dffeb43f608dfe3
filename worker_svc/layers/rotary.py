"""Rotary position embedding (arXiv:2104.09864) from one cached table. Knows positions, no sequence.

Legend: N tokens, A heads, D head_dim, L positions of the table. The two halves of a head are
rotated against each other ("half" layout, as transformers stores weights).
"""

from dataclasses import dataclass

import torch

from worker_svc.layers.fused import Turns
from worker_svc.layers.linear import TensorKind
from worker_svc.layers.rope_frequencies import inverse_frequencies
from worker_svc.models.rope_spec import RopeSpec, YarnRope


@dataclass(frozen=True, slots=True, eq=False)
class RotaryRows:
    """The table's rows of one step's tokens, picked once for all layers."""

    cosine: torch.Tensor  # [N, 1, D]
    sine: torch.Tensor  # [N, 1, D], negated in the first half


class RotaryEmbedding:
    """Cosines and sines of every position."""

    def __init__(
        self, rope: RopeSpec, *, head_dim: int, num_positions: int, kind: TensorKind
    ) -> None:
        magnitude = rope.magnitude if isinstance(rope, YarnRope) else 1.0
        positions = torch.arange(num_positions, dtype=torch.float32)
        angles = torch.outer(positions, inverse_frequencies(rope, head_dim=head_dim))  # [L, D/2]
        self.num_positions = num_positions
        self._half = head_dim // 2
        self._cosine = (angles.cos() * magnitude).to(kind.device, kind.dtype)  # [L, D/2]
        self._sine = (angles.sin() * magnitude).to(kind.device, kind.dtype)  # [L, D/2]

    @property
    def turns(self) -> Turns:
        """The whole table."""
        return Turns(self._cosine, self._sine)

    def rows(self, positions: torch.Tensor) -> RotaryRows:
        """The rows of [N] positions, each below `num_positions`."""
        cosine = self._cosine.index_select(0, positions)
        sine = self._sine.index_select(0, positions)
        return RotaryRows(
            cosine=torch.cat((cosine, cosine), dim=-1).unsqueeze(1),
            sine=torch.cat((-sine, sine), dim=-1).unsqueeze(1),
        )

    def __call__(self, x: torch.Tensor, rows: RotaryRows) -> torch.Tensor:
        """[N, A, D] -> [N, A, D], contiguous."""
        swapped = x.roll(self._half, dims=-1)
        return (x * rows.cosine).addcmul_(swapped, rows.sine)
