"""The small kernels of a layer compute what their references do, at odd sizes and with padding."""

import pytest
import torch

from worker_svc.kernels import references
from worker_svc.kernels.activation import silu_and_mul
from worker_svc.kernels.kv_store import store_kvcache
from worker_svc.kernels.norm import add_rms_norm, rms_norm
from worker_svc.kernels.rotate_and_store import QKNorm, RotaryTable, norm_rotate_store

EPSILON = 1e-6
TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
DTYPES = tuple(TOLERANCES)


def random(*shape: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(device, dtype)


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCES[found.dtype]
    torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "features"), [(1, 1024), (3, 576), (2, 4096), (5, 100)])
def test_norms_equal_their_reference(
    device: torch.device, dtype: torch.dtype, tokens: int, features: int
) -> None:
    x = random(tokens, features, dtype=dtype, device=device)
    residual = random(tokens, features, dtype=dtype, device=device, seed=1)
    weight = random(features, dtype=dtype, device=device)
    assert_near(rms_norm(x, weight, epsilon=EPSILON), references.rms_norm(x, weight, EPSILON))
    out, total = add_rms_norm(x, residual, weight, epsilon=EPSILON)
    assert_near(total, (x + residual).float())  # the interpreter cuts bf16 instead of rounding
    assert_near(out, references.rms_norm(x + residual, weight, EPSILON))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "features"), [(1, 3072), (4, 1536), (3, 1000), (2, 1)])
def test_silu_and_mul_equals_its_reference(
    device: torch.device, dtype: torch.dtype, tokens: int, features: int
) -> None:
    x = random(tokens, 2 * features, dtype=dtype, device=device)
    assert_near(silu_and_mul(x), references.silu_and_mul(x))


def places(num_tokens: int, num_places: int, device: torch.device) -> torch.Tensor:
    """Different places in no order; every third token has none."""
    generator = torch.Generator().manual_seed(num_tokens)
    chosen = torch.randperm(num_places, generator=generator)[:num_tokens]
    chosen[::3] = -1
    return chosen.to(device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [16, 64, 256])
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(8, 128), (3, 64), (1, 80)])
def test_store_writes_its_places_and_nothing_else(
    device: torch.device, dtype: torch.dtype, block_size: int, kv_heads: int, head_dim: int
) -> None:
    # scenario CG-03: a negative place is skipped, not the last one
    heads = random(7, 4 * kv_heads, head_dim, dtype=dtype, device=device)
    k, v = heads[:, kv_heads : 2 * kv_heads], heads[:, 3 * kv_heads :]
    keys = random(4, block_size, kv_heads, head_dim, dtype=dtype, device=device)
    values = keys.neg()
    slot_mapping = places(7, 4 * block_size, device)
    expected = [references.stored(*pair, slot_mapping) for pair in ((keys, k), (values, v))]
    store_kvcache(k, v, keys=keys, values=values, slot_mapping=slot_mapping)
    assert torch.equal(keys, expected[0])
    assert torch.equal(values, expected[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norm", [True, False])
@pytest.mark.parametrize(
    ("num_heads", "kv_heads", "head_dim"), [(16, 8, 128), (9, 3, 64), (10, 2, 64), (8, 1, 80)]
)
def test_norm_rotate_store_equals_the_steps_one_by_one(
    device: torch.device,
    dtype: torch.dtype,
    has_norm: bool,  # noqa: FBT001 a parameter of the test
    num_heads: int,
    kv_heads: int,
    head_dim: int,
) -> None:
    heads = random(5, num_heads + 2 * kv_heads, head_dim, dtype=dtype, device=device)
    angles = torch.outer(torch.arange(50.0), torch.rand(head_dim // 2)).to(device)
    table = RotaryTable(angles.cos().to(dtype), angles.sin().to(dtype))
    positions = torch.tensor([0, 49, 7, 7, 30], device=device)
    weights = random(2, head_dim, dtype=dtype, device=device)
    norm = QKNorm(weights[0], weights[1], EPSILON) if has_norm else None
    keys = random(3, 16, kv_heads, head_dim, dtype=dtype, device=device)
    values = keys.neg()
    slot_mapping = places(5, 48, device)

    q, k, v = heads.float().tensor_split((num_heads, num_heads + kv_heads), dim=1)
    if norm is not None:
        q = references.rms_norm(q, norm.query_weight, EPSILON)
        k = references.rms_norm(k, norm.key_weight, EPSILON)
    rows = (table.cosine[positions], table.sine[positions])
    expected_q, turned_k = references.rotated(q, *rows), references.rotated(k, *rows)
    expected_keys = references.stored(keys.float(), turned_k, slot_mapping)
    expected_values = references.stored(values, v, slot_mapping)

    found = norm_rotate_store(
        heads,
        norm=norm,
        table=table,
        positions=positions,
        keys=keys,
        values=values,
        slot_mapping=slot_mapping,
    )
    assert_near(found, expected_q)
    assert_near(keys, expected_keys)
    assert torch.equal(values, expected_values)


def test_no_tokens_are_no_launch(device: torch.device) -> None:
    cache = torch.zeros(2, 16, 2, 64, device=device)
    none = torch.zeros(0, dtype=torch.int64, device=device)
    k = torch.zeros(0, 2, 64, device=device)
    store_kvcache(k, k, keys=cache, values=cache, slot_mapping=none)
    assert rms_norm(k.flatten(1), torch.ones(128, device=device), epsilon=EPSILON).shape == (0, 128)
    assert silu_and_mul(k.flatten(1)).shape == (0, 64)
    q = norm_rotate_store(
        torch.zeros(0, 8, 64, device=device),
        norm=None,
        table=RotaryTable(torch.zeros(1, 32, device=device), torch.zeros(1, 32, device=device)),
        positions=none,
        keys=cache,
        values=cache,
        slot_mapping=none,
    )
    assert q.shape == (0, 4, 64)
    assert not bool(cache.any())
