"""Layers alone: what each computes, and which part of the checkpoint each rank takes."""

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional

from tests.model.rigs import CPU
from worker_svc.layers import projection
from worker_svc.layers.activation import SiluAndMul
from worker_svc.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from worker_svc.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    TensorKind,
)
from worker_svc.layers.norm import RMSNorm
from worker_svc.layers.weight_shard import WeightShard

FLOAT32 = TensorKind(torch.float32, CPU)


@dataclass
class Silent:
    """A rank whose exchanges return its own part: tests add the parts up themselves."""

    rank: int
    size: int

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        raise AssertionError("no layer gathers")


def ranks(size: int) -> list[Silent]:
    return [Silent(rank, size) for rank in range(size)]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def fill(shards: Iterable[WeightShard], full: dict[str, torch.Tensor]) -> None:
    """Do what a loader does."""
    for shard in shards:
        stored = full[shard.name]
        assert tuple(stored.shape) == shard.full_shape
        size = shard.destination.shape[shard.dim]
        shard.destination.copy_(stored.narrow(shard.dim, shard.start, size))


@pytest.mark.parametrize("packed", [False, True])
def test_replicated_linear_holds_everything_on_each_rank(
    packed: bool,  # noqa: FBT001 - pytest gives it by name
) -> None:
    full = {"x.weight": random(12, 8), "x.bias": random(12)}
    layer = ReplicatedLinear(8, 12, kind=FLOAT32, has_bias=True)
    fill(layer.shards("x"), full)
    if packed:
        layer.projection.pack()
    x = random(5, 8, seed=1)
    torch.testing.assert_close(layer(x), functional.linear(x, full["x.weight"], full["x.bias"]))


@pytest.mark.parametrize("has_packed_bfloat16", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_packing_changes_no_product_on_any_processor(
    dtype: torch.dtype,
    has_packed_bfloat16: bool,  # noqa: FBT001 - pytest gives it by name
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Packing for products that the processor lacks would raise: those weights stay plain."""
    if not has_packed_bfloat16:
        monkeypatch.setattr(projection, "_has_packed_bfloat16", lambda: False)
    layer = ReplicatedLinear(8, 12, kind=TensorKind(dtype, CPU), has_bias=True)
    full = {"x.weight": random(12, 8).to(dtype), "x.bias": random(12).to(dtype)}
    fill(layer.shards("x"), full)
    layer.projection.pack()
    x = random(5, 8, seed=1).to(dtype)
    plain = functional.linear(x, full["x.weight"], full["x.bias"])
    torch.testing.assert_close(layer(x), plain)
    if dtype is torch.bfloat16 and not has_packed_bfloat16:
        assert layer.projection.weight.layout is torch.strided


def test_column_parallel_parts_lie_beside_each_other() -> None:
    full = {"x.weight": random(12, 8), "x.bias": random(12)}
    x = random(5, 8, seed=1)
    parts = []
    for group in ranks(3):
        layer = ColumnParallelLinear(8, 12, group=group, kind=FLOAT32, has_bias=True)
        fill(layer.shards("x"), full)
        parts.append(layer(x))
    expected = functional.linear(x, full["x.weight"], full["x.bias"])
    torch.testing.assert_close(torch.cat(parts, dim=1), expected)


def test_merged_columns_keep_the_parts_of_a_rank_together() -> None:
    full = {"a.weight": random(12, 8), "b.weight": random(6, 8, seed=2)}
    x = random(5, 8, seed=1)
    for group in ranks(2):
        layer = MergedColumnParallelLinear(8, [12, 6], group=group, kind=FLOAT32)
        fill(layer.shards(["a", "b"]), full)
        mine = [weight.chunk(2)[group.rank] for weight in full.values()]
        torch.testing.assert_close(layer(x), x @ torch.cat(mine).T)


@pytest.mark.parametrize(
    ("num_kv_heads", "size", "expected"),
    [
        (4, 2, [[0, 1], [2, 3]]),
        (2, 2, [[0], [1]]),
        (2, 4, [[0], [0], [1], [1]]),
        (1, 4, [[0], [0], [0], [0]]),
    ],
)
def test_each_rank_gets_the_kv_heads_of_its_query_heads(
    num_kv_heads: int, size: int, expected: list[list[int]]
) -> None:
    num_heads, head_dim = 4, 2
    # every row of the weight says which head it belongs to
    heads = torch.arange(num_heads).repeat_interleave(head_dim).unsqueeze(1).float().repeat(1, 3)
    full = {"q.weight": heads}
    full |= {f"{name}.weight": heads[: num_kv_heads * head_dim] + 10 for name in "kv"}
    for group, kv_heads in zip(ranks(size), expected, strict=True):
        layer = QKVParallelLinear(
            3,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            group=group,
            kind=FLOAT32,
        )
        fill(layer.shards("qkv"), full)
        found = layer.projection.weight[::head_dim, 0].tolist()
        queries = torch.arange(num_heads).chunk(size)[group.rank].tolist()
        assert found == [*queries, *(10 + head for head in kv_heads * 2)]


def test_row_parallel_parts_add_up_and_the_bias_counts_once() -> None:
    full = {"x.weight": random(7, 12), "x.bias": random(7)}
    x = random(5, 12, seed=1)
    total = torch.zeros(5, 7)
    for group in ranks(3):
        layer = RowParallelLinear(12, 7, group=group, kind=FLOAT32, has_bias=True)
        fill(layer.shards("x"), full)
        total += layer(x.chunk(3, dim=1)[group.rank])
    expected = functional.linear(x, full["x.weight"], full["x.bias"])
    torch.testing.assert_close(total, expected)


def test_embedding_parts_add_up_when_ranks_do_not_divide_the_vocabulary() -> None:
    full = {"x.weight": random(10, 4)}
    token_ids = torch.tensor([0, 9, 3, 4, 5, 9])
    total = torch.zeros(6, 4)
    for group in ranks(4):  # 3 rows each: the last rank has one real row
        layer = VocabParallelEmbedding(10, 4, group=group, kind=FLOAT32)
        fill(layer.shards("x"), full)
        total += layer(token_ids)
    torch.testing.assert_close(total, full["x.weight"][token_ids])


def test_head_computes_the_last_rows_only() -> None:
    full = {"x.weight": random(10, 4)}
    hidden, last = random(6, 4, seed=1), torch.tensor([5, 2])
    parts = []
    for group in ranks(4):
        layer = ParallelLMHead(10, 4, group=group, kind=FLOAT32)
        fill(layer.shards("x"), full)
        layer.projection.pack()
        parts.append(layer(hidden, last))
    logits = torch.cat(parts, dim=1)[:, :10]
    torch.testing.assert_close(logits, hidden[last] @ full["x.weight"].T)


def test_norm_follows_its_formula_with_and_without_residual() -> None:
    norm = RMSNorm(8, epsilon=1e-3, kind=FLOAT32)
    fill(norm.shards("x"), {"x.weight": random(8)})
    x, residual = random(2, 5, 8, seed=1).unbind(0)

    def expected(values: torch.Tensor) -> torch.Tensor:
        return values / (values.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight

    torch.testing.assert_close(norm(x), expected(x))
    normalised, total = norm.with_residual(x, residual)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(normalised, expected(x + residual))


def test_gate_multiplies_the_second_half() -> None:
    x = random(5, 12)
    torch.testing.assert_close(SiluAndMul()(x), functional.silu(x[:, :6]) * x[:, 6:])
