"""The linear layers, split over ranks or not. They know the checkpoint's names, no file.

Legend: N tokens, I input features, O output features of this rank (of all ranks where said).
Column-parallel layers split O, row-parallel layers split I and give parts of a sum over ranks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from worker_svc.layers.fused import LayerKernels
from worker_svc.layers.projection import Projection
from worker_svc.layers.weight_shard import WeightShard, split, whole
from worker_svc.parallel.group import ParallelGroup


@dataclass(frozen=True, slots=True)
class TensorKind:
    """Number format and place of a layer's weights, and the device's own kernels, if it has any."""

    dtype: torch.dtype
    device: torch.device
    kernels: LayerKernels | None = None


class ReplicatedLinear:
    """Every rank holds all of it."""

    def __init__(
        self, num_inputs: int, num_outputs: int, *, kind: TensorKind, has_bias: bool = False
    ) -> None:
        self.projection = _empty(num_inputs, num_outputs, kind=kind, has_bias=has_bias)

    def shards(self, name: str) -> Iterator[WeightShard]:
        """The checkpoint tensors `name`.weight and `name`.bias."""
        yield whole(f"{name}.weight", self.projection.weight)
        if self.projection.bias is not None:
            yield whole(f"{name}.bias", self.projection.bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[N, I] -> [N, O]."""
        return self.projection(x)


class MergedColumnParallelLinear:
    """Several column-parallel layers with one input, computed as one product."""

    def __init__(
        self,
        num_inputs: int,
        outputs_of_all: Sequence[int],
        *,
        group: ParallelGroup,
        kind: TensorKind,
        has_bias: bool = False,
    ) -> None:
        self._rank = group.rank
        self._outputs_of_all = tuple(outputs_of_all)
        self.output_sizes = tuple(outputs // group.size for outputs in outputs_of_all)
        self.projection = _empty(num_inputs, sum(self.output_sizes), kind=kind, has_bias=has_bias)

    def shards(self, names: Sequence[str]) -> Iterator[WeightShard]:
        """The parts, one name each, in the order of the outputs."""
        starts = [self._rank * size for size in self.output_sizes]
        yield from _column_shards(
            self.projection, names, self._outputs_of_all, starts, self.output_sizes
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[N, I] -> [N, sum of output_sizes]."""
        return self.projection(x)


class ColumnParallelLinear:
    """Each rank computes its part of the outputs; the parts stay apart."""

    def __init__(
        self,
        num_inputs: int,
        outputs_of_all: int,
        *,
        group: ParallelGroup,
        kind: TensorKind,
        has_bias: bool = False,
    ) -> None:
        self._merged = MergedColumnParallelLinear(
            num_inputs, [outputs_of_all], group=group, kind=kind, has_bias=has_bias
        )
        self.projection = self._merged.projection

    def shards(self, name: str) -> Iterator[WeightShard]:
        """The checkpoint tensors `name`.weight and `name`.bias."""
        yield from self._merged.shards([name])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[N, I] -> [N, O]."""
        return self.projection(x)


class QKVParallelLinear:
    """Queries, keys and values as one product. With more ranks than KV heads, ranks share a KV
    head.
    """

    def __init__(
        self,
        hidden_size: int,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        group: ParallelGroup,
        kind: TensorKind,
        has_bias: bool = False,
    ) -> None:
        self._outputs_of_all = (
            num_heads * head_dim,
            num_kv_heads * head_dim,
            num_kv_heads * head_dim,
        )
        self.num_heads = num_heads // group.size
        self.num_kv_heads = max(1, num_kv_heads // group.size)
        kv_rank = group.rank * num_kv_heads // group.size
        kv_start = kv_rank if num_kv_heads < group.size else group.rank * self.num_kv_heads
        self._starts = (
            group.rank * self.num_heads * head_dim,
            kv_start * head_dim,
            kv_start * head_dim,
        )
        self.query_size = self.num_heads * head_dim
        self.kv_size = self.num_kv_heads * head_dim
        self.projection = _empty(
            hidden_size, self.query_size + 2 * self.kv_size, kind=kind, has_bias=has_bias
        )

    def shards(self, names: Sequence[str]) -> Iterator[WeightShard]:
        """Queries, keys, values, one name each."""
        sizes = (self.query_size, self.kv_size, self.kv_size)
        yield from _column_shards(self.projection, names, self._outputs_of_all, self._starts, sizes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[N, I] -> [N, query_size + 2 * kv_size]."""
        return self.projection(x)


class RowParallelLinear:
    """Each rank multiplies its part of the inputs; whoever uses the results sums them over ranks.

    The sum is left to the norm that follows, which can do both in one launch.
    """

    def __init__(
        self,
        inputs_of_all: int,
        num_outputs: int,
        *,
        group: ParallelGroup,
        kind: TensorKind,
        has_bias: bool = False,
    ) -> None:
        self._group = group
        self._inputs_of_all = inputs_of_all
        self._num_inputs = inputs_of_all // group.size
        self.projection = _empty(self._num_inputs, num_outputs, kind=kind, has_bias=False)
        self.bias = (
            torch.empty(num_outputs, dtype=kind.dtype, device=kind.device) if has_bias else None
        )

    def shards(self, name: str) -> Iterator[WeightShard]:
        """The checkpoint tensors `name`.weight and `name`.bias."""
        start = self._group.rank * self._num_inputs
        weight = self.projection.weight
        yield split(f"{name}.weight", weight, dim=1, full=self._inputs_of_all, start=start)
        if self.bias is not None:
            yield whole(f"{name}.bias", self.bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[N, I] -> [N, O], this rank's part of a sum."""
        part = self.projection(x)
        if self.bias is None or self._group.rank > 0:  # added once, not once a rank
            return part
        return part + self.bias


def _empty(num_inputs: int, num_outputs: int, *, kind: TensorKind, has_bias: bool) -> Projection:
    return Projection.empty(
        num_inputs, num_outputs, has_bias=has_bias, dtype=kind.dtype, device=kind.device
    )


def _column_shards(
    projection: Projection,
    names: Sequence[str],
    outputs_of_all: Sequence[int],
    starts: Sequence[int],
    sizes: Sequence[int],
) -> Iterator[WeightShard]:
    first = 0
    for name, full, start, size in zip(names, outputs_of_all, starts, sizes, strict=True):
        place = slice(first, first + size)
        yield split(f"{name}.weight", projection.weight[place], dim=0, full=full, start=start)
        if projection.bias is not None:
            yield split(f"{name}.bias", projection.bias[place], dim=0, full=full, start=start)
        first += size
