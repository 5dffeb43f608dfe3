"""What every attention backend offers. Knows no model and no file.

Legend: N tokens, A query heads, K key heads, D head_dim, M blocks, B tokens in a block.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from worker_svc.execution.forward_batch import ForwardBatch


@dataclass(frozen=True, slots=True, eq=False)
class LayerCache:
    """The paged keys and values of one layer. Block 0 is the trash block: nobody's content."""

    keys: torch.Tensor  # [M, B, K, D]
    values: torch.Tensor  # [M, B, K, D]


class StepAttention(Protocol):
    """A backend bound to one step's batch; the same for all layers of the step."""

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cache: LayerCache
    ) -> torch.Tensor:
        """Store k and v [N, K, D] where the batch says, then attend with q [N, A, D].

        Returns [N, A, D]: causal, each row over its own keys up to its query's position.
        """
        ...


class StoredAttention(Protocol):
    """A backend bound to a step whose keys and values another kernel has stored."""

    def attend(self, q: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """[N, A, D] of q [N, A, D]: causal, each row over its own keys, this step's included."""
        ...


class StoredBackend(Protocol):
    """Makes a `StoredAttention` of each batch; prepares once what all layers share."""

    def bind(self, batch: ForwardBatch, *, block_size: int) -> StoredAttention:
        """Prepare a step."""
        ...


class AttentionBackend(Protocol):
    """Makes a `StepAttention` of each batch; prepares once what all layers share."""

    def bind(self, batch: ForwardBatch, *, block_size: int) -> StepAttention:
        """Prepare a step."""
        ...
