"""Sizes of the cache: bytes of a block, blocks of a budget, memory as laid out."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from worker_svc.execution.kv_cache import KVCache, KVLayout

layouts = st.builds(
    KVLayout,
    num_layers=st.integers(1, 4),
    num_blocks=st.integers(1, 20),
    block_size=st.sampled_from([1, 16, 256]),
    num_kv_heads=st.integers(1, 3),
    head_dim=st.sampled_from([16, 64]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)


@given(layout=layouts)
def test_allocated_memory_is_what_the_layout_says(layout: KVLayout) -> None:
    cache = KVCache.allocate(layout, device=torch.device("cpu"))
    tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    assert len(cache.layers) == layout.num_layers
    assert sum(tensor.numel() * tensor.element_size() for tensor in tensors) == layout.num_bytes
    places = (layout.num_blocks, layout.block_size, layout.num_kv_heads, layout.head_dim)
    assert all(tensor.shape == places and tensor.dtype == layout.dtype for tensor in tensors)


@given(layout=layouts, num_bytes=st.integers(-10, 10**8))
def test_as_many_blocks_as_fit_and_no_more(layout: KVLayout, num_bytes: int) -> None:
    count = layout.num_blocks_within(num_bytes)
    assert count * layout.bytes_per_block <= max(0, num_bytes)
    assert (count + 1) * layout.bytes_per_block > num_bytes


def test_bytes_of_qwen3_8b() -> None:
    layout = KVLayout(36, 1, 16, 8, 128, torch.bfloat16)
    assert layout.bytes_per_block == 16 * 147_456
