"""The triton backend computes what the torch backend computes, step after step of one cache."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.model.rigs import Row, step_of
from worker_svc.attention.backend import LayerCache
from worker_svc.attention.torch_backend import TorchBackend
from worker_svc.attention.triton_backend import TritonBackend
from worker_svc.execution.builder import build_batch
from worker_svc.execution.forward_batch import ForwardBatch

NUM_SLOTS = 5
BLOCKS_PER_SLOT = 6
TOLERANCE = 5e-6


def table() -> np.ndarray:
    blocks = np.random.default_rng(1).permutation(NUM_SLOTS * BLOCKS_PER_SLOT) + 1
    return blocks.reshape(NUM_SLOTS, BLOCKS_PER_SLOT).astype(np.int32)


def batch_of(rows: Sequence[Row], block_size: int) -> ForwardBatch:
    none = torch.zeros(NUM_SLOTS, dtype=torch.int64)
    return build_batch(step_of(rows, table=table()), last_tokens=none, block_size=block_size)


def on(device: torch.device, batch: ForwardBatch) -> ForwardBatch:
    return ForwardBatch(
        token_ids=batch.token_ids.to(device),
        positions=batch.positions.to(device),
        slot_mapping=batch.slot_mapping.to(device),
        block_table=batch.block_table.to(device),
        cu_seqlens_q=batch.cu_seqlens_q.to(device),
        cache_seqlens=batch.cache_seqlens.to(device),
        last_indexes=batch.last_indexes.to(device),
        query_lens=batch.query_lens,
        key_lens=batch.key_lens,
        num_single_rows=batch.num_single_rows,
    )


STEPS = (
    [Row(0, 0, [1] * 20), Row(1, 0, [1] * 3)],  # chunks alone
    [Row(1, 3, None), Row(0, 20, None)],  # single rows alone
    [Row(2, 0, [1] * 40), Row(0, 21, None), Row(3, 0, [1]), Row(1, 4, [1] * 17)],  # mixed
    [Row(2, 40, [1] * 9), Row(4, 0, [1] * 16), Row(0, 22, None), Row(3, 1, None)],
)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 2), (9, 3), (3, 3)])
def test_steps_equal_the_torch_backends(
    device: torch.device, num_heads: int, num_kv_heads: int
) -> None:
    block_size, head_dim = 16, 64
    shape = (NUM_SLOTS * BLOCKS_PER_SLOT + 1, block_size, num_kv_heads, head_dim)
    expected_cache = LayerCache(torch.zeros(shape), torch.zeros(shape))
    cache = LayerCache(torch.zeros(shape, device=device), torch.zeros(shape, device=device))
    reference = TorchBackend()
    backend = TritonBackend.create(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        most_rows=NUM_SLOTS,
        device=device,
    )
    generator = torch.Generator().manual_seed(2)
    for rows in STEPS:
        batch = batch_of(rows, block_size)
        heads = torch.randn(
            len(batch.token_ids), num_heads + 2 * num_kv_heads, head_dim, generator=generator
        )
        q, k, v = heads.tensor_split((num_heads, num_heads + num_kv_heads), dim=1)
        expected = reference.bind(batch, block_size=block_size)(q, k, v, expected_cache)
        q, k, v = (part.to(device) for part in (q, k, v))
        found = backend.bind(on(device, batch), block_size=block_size)(q, k, v, cache)
        torch.testing.assert_close(found.cpu(), expected, rtol=TOLERANCE, atol=TOLERANCE)
        assert torch.equal(cache.keys.cpu(), expected_cache.keys)
        assert torch.equal(cache.values.cpu(), expected_cache.values)
