"""The attention layer: projections, q/k-norm, rotation; the backend does the rest.

Legend: N tokens, H hidden size, A query heads and K key heads of this rank, D head_dim.
"""

from collections.abc import Iterator

import torch

from worker_svc.attention.backend import LayerCache, StepAttention
from worker_svc.layers.fused import FusedStep, HeadNorms
from worker_svc.layers.linear import QKVParallelLinear, RowParallelLinear, TensorKind
from worker_svc.layers.norm import RMSNorm
from worker_svc.layers.projection import Projection
from worker_svc.layers.rotary import RotaryEmbedding, RotaryRows
from worker_svc.layers.weight_shard import WeightShard
from worker_svc.models.spec import ModelSpec
from worker_svc.parallel.group import ParallelGroup


class Attention:
    """Grouped-query self-attention with rotary positions."""

    def __init__(
        self, spec: ModelSpec, *, rotary: RotaryEmbedding, group: ParallelGroup, kind: TensorKind
    ) -> None:
        self._rotary = rotary
        self._head_dim = spec.head_dim
        self._qkv = QKVParallelLinear(
            spec.hidden_size,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            group=group,
            kind=kind,
            has_bias=spec.has_qkv_bias,
        )
        self._output = RowParallelLinear(
            spec.num_heads * spec.head_dim,
            spec.hidden_size,
            group=group,
            kind=kind,
            has_bias=spec.has_output_bias,
        )
        self._query_norm = self._key_norm = None
        if spec.has_qk_norm:
            self._query_norm = RMSNorm(spec.head_dim, epsilon=spec.norm_epsilon, kind=kind)
            self._key_norm = RMSNorm(spec.head_dim, epsilon=spec.norm_epsilon, kind=kind)

    def shards(self, name: str) -> Iterator[WeightShard]:
        """The checkpoint tensors below `name`."""
        yield from self._qkv.shards([f"{name}.{part}_proj" for part in "qkv"])
        yield from self._output.shards(f"{name}.o_proj")
        if self._query_norm is not None and self._key_norm is not None:
            yield from self._query_norm.shards(f"{name}.q_norm")
            yield from self._key_norm.shards(f"{name}.k_norm")

    def projections(self) -> Iterator[Projection]:
        """What `pack` may repack."""
        yield self._qkv.projection
        yield self._output.projection

    def __call__(
        self,
        hidden: torch.Tensor,
        rows: RotaryRows | None,
        attend: StepAttention | FusedStep,
        cache: LayerCache,
    ) -> torch.Tensor:
        """[N, H] -> [N, H], this rank's part of a sum; writes keys and values into the cache.

        `rows` are the tokens' turns; a fused step finds them itself.
        """
        num_heads, num_kv_heads = self._qkv.num_heads, self._qkv.num_kv_heads
        heads = self._qkv(hidden).view(hidden.shape[0], -1, self._head_dim)  # [N, A + 2K, D]
        if isinstance(attend, FusedStep):
            out = attend(heads, self._head_norms(), self._rotary.turns, cache)
            return self._output(out.flatten(1))
        assert rows is not None
        v = heads[:, num_heads + num_kv_heads :]
        if self._query_norm is not None and self._key_norm is not None:
            q = self._rotary(self._query_norm(heads[:, :num_heads]), rows)
            k = self._rotary(self._key_norm(heads[:, num_heads:-num_kv_heads]), rows)
        else:
            turned = self._rotary(heads[:, :-num_kv_heads], rows)
            q, k = turned[:, :num_heads], turned[:, num_heads:]
        return self._output(attend(q, k, v, cache).flatten(1))

    def _head_norms(self) -> HeadNorms | None:
        if self._query_norm is None or self._key_norm is None:
            return None
        return HeadNorms(
            self._query_norm.weight, self._key_norm.weight, epsilon=self._query_norm.epsilon
        )
