"""The triton backend computes what the torch backend computes, step after step of one cache."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fakes.checkpoints import TinyModel, make_tiny_checkpoint
from tests.model.rigs import NUM_SLOTS as RIG_SLOTS
from tests.model.rigs import Rig, Row, load, no_progress, random_tokens, step_of
from worker_svc.attention.backend import LayerCache
from worker_svc.attention.torch_backend import TorchBackend
from worker_svc.attention.triton_backend import TritonBackend
from worker_svc.execution.builder import build_batch
from worker_svc.execution.forward_batch import ForwardBatch
from worker_svc.models.spec import parse_model_spec
from worker_svc.parallel.group import SingleRank
from worker_svc.weights.loader import load_model

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


def test_padding_single_rows_may_lie_where_chunks_begin(device: torch.device) -> None:
    # a mixed graph: two single rows padded to four, whose tokens 2 and 3 are the chunk's first
    block_size = 16
    batch = batch_of([Row(0, 0, [1]), Row(1, 0, [1]), Row(2, 0, [1] * 20)], block_size)
    padding = torch.zeros(2, dtype=torch.int32)
    padded = replace(
        batch,
        block_table=torch.cat(
            (batch.block_table[:2], batch.block_table[:2] * 0, batch.block_table[2:])
        ),
        cu_seqlens_q=torch.tensor([0, 1, 2, 2, 2, 22], dtype=torch.int32),
        cache_seqlens=torch.cat((batch.cache_seqlens[:2], padding, batch.cache_seqlens[2:])),
        query_lens=(1, 1, 1, 1, 20),
        key_lens=(1, 1, 1, 1, 20),
        num_single_rows=4,
    )
    shape = (NUM_SLOTS * BLOCKS_PER_SLOT + 1, block_size, 2, 64)
    q, k, v = torch.randn(22, 8, 64, generator=torch.Generator().manual_seed(3)).tensor_split(
        (4, 6), dim=1
    )
    expected = TorchBackend().bind(batch, block_size=block_size)(
        q, k, v, LayerCache(torch.zeros(shape), torch.zeros(shape))
    )
    backend = TritonBackend.create(
        num_heads=4, num_kv_heads=2, head_dim=64, most_rows=NUM_SLOTS, device=device
    )
    cache = LayerCache(torch.zeros(shape, device=device), torch.zeros(shape, device=device))
    bound = backend.bind(on(device, padded), block_size=block_size)
    found = bound(q.to(device), k.to(device), v.to(device), cache)
    torch.testing.assert_close(found.cpu(), expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_model_has_the_same_logits_on_both_backends(device: torch.device, tmp_path: Path) -> None:
    if device.type != "cpu":
        pytest.skip("the rig lives on the CPU, where kernels run in the interpreter only")
    folder = make_tiny_checkpoint(tmp_path, model=TinyModel(family="qwen3", head_dim=32))
    spec = parse_model_spec(folder / "config.json")
    backend = TritonBackend.create(
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        most_rows=RIG_SLOTS,
        device=device,
    )
    model = load_model(
        folder,
        spec=spec,
        group=SingleRank(),
        backend=backend,
        dtype=torch.float32,
        device=device,
        num_positions=512,
        progress=no_progress,
    )
    reference, rig = Rig(load(folder)), Rig(model)
    tokens = [random_tokens(60, seed=seed) for seed in range(3)]
    for steps in (
        [Row(0, 0, tokens[0][:33]), Row(1, 0, tokens[1][:1])],
        [Row(2, 0, tokens[2][:17]), Row(0, 33, tokens[0][33:34]), Row(1, 1, tokens[1][1:20])],
        [
            Row(slot, start, tokens[slot][start : start + 1])
            for slot, start in enumerate((34, 20, 17))
        ],
    ):
        found, expected = rig.logits(steps), reference.logits(steps)
        assert float((found - expected).abs().max()) < 1e-4
