"""The embedding and the head, both split over ranks by vocabulary. They know ids, no text.

Legend: N tokens, S sampling rows, H hidden size, V vocabulary rows of all ranks, P rows of one rank
(V / ranks, rounded up; rows beyond V are zeros).
"""

from collections.abc import Iterator

import torch
from torch.nn import functional

from worker_svc.layers.linear import TensorKind
from worker_svc.layers.projection import Projection
from worker_svc.layers.weight_shard import WeightShard, split
from worker_svc.parallel.group import ParallelGroup


class VocabParallelEmbedding:
    """Each rank looks up the ids it holds; whoever uses the result sums it over ranks."""

    def __init__(
        self, vocab_size: int, hidden_size: int, *, group: ParallelGroup, kind: TensorKind
    ) -> None:
        self._group = group
        self._vocab_size = vocab_size
        self.first_id = group.rank * rows_per_rank(vocab_size, group)
        self.weight = _vocabulary_rows(vocab_size, hidden_size, group=group, kind=kind)  # [P, H]

    def shards(self, name: str) -> Iterator[WeightShard]:
        """The checkpoint tensor `name`.weight."""
        yield from _vocabulary_shards(name, self.weight, self._vocab_size, self.first_id)

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[N] -> [N, H], this rank's part of a sum: zeros for ids of others."""
        if self._group.size == 1:
            return functional.embedding(token_ids, self.weight)
        rows = token_ids - self.first_id
        is_ours = (rows >= 0) & (rows < self.weight.shape[0])
        found = functional.embedding(rows.where(is_ours, 0), self.weight)
        return found.masked_fill(~is_ours.unsqueeze(1), 0)


class ParallelLMHead:
    """Logits of this rank's part of the vocabulary, for the rows that sample only.

    A tied head uses the embedding's weight; packing the head then makes a second copy, in the
    layout of products, because lookups need the plain one.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        group: ParallelGroup,
        kind: TensorKind,
        tied_to: VocabParallelEmbedding | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self.first_id = group.rank * rows_per_rank(vocab_size, group)
        self.projection = Projection(
            _vocabulary_rows(vocab_size, hidden_size, group=group, kind=kind)
            if tied_to is None
            else tied_to.weight
        )

    def shards(self, name: str) -> Iterator[WeightShard]:
        """The checkpoint tensor `name`.weight."""
        weight = self.projection.weight
        yield from _vocabulary_shards(name, weight, self._vocab_size, self.first_id)

    def __call__(self, hidden: torch.Tensor, last_indexes: torch.Tensor) -> torch.Tensor:
        """[N, H] and [S] -> [S, P]."""
        return self.projection(hidden.index_select(0, last_indexes))


def rows_per_rank(vocab_size: int, group: ParallelGroup) -> int:
    """Vocabulary rows that each rank holds; the last rank's may reach beyond the vocabulary."""
    return -(-vocab_size // group.size)


def _vocabulary_rows(
    vocab_size: int, hidden_size: int, *, group: ParallelGroup, kind: TensorKind
) -> torch.Tensor:
    num_rows = rows_per_rank(vocab_size, group)
    return torch.zeros(num_rows, hidden_size, dtype=kind.dtype, device=kind.device)


def _vocabulary_shards(
    name: str, weight: torch.Tensor, vocab_size: int, first_id: int
) -> Iterator[WeightShard]:
    num_ours = max(0, min(weight.shape[0], vocab_size - first_id))
    yield split(f"{name}.weight", weight[:num_ours], dim=0, full=vocab_size, start=first_id)
