"""Copies new keys and values to their places in the paged cache. Knows no attention.

Legend: N tokens, K key heads, D head_dim, M blocks, B tokens in a block.

One program copies one token: its K * D values lie together in the cache (4 KB for 8 heads of 128
in bf16), so reads and writes are whole lines. A negative place is a token without a place (the
padding rows of a graph); its program ends at once.
"""

import torch
import triton
import triton.language as tl

from worker_svc.kernels.jit import kernel


def store_kvcache(
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    keys: torch.Tensor,
    values: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Copy k and v [N, K, D] into `keys` and `values` [M, B, K, D] at `slot_mapping` [N].

    The heads of a token must lie together; tokens may be apart (a part of the qkv product).
    """
    num_tokens, num_kv_heads, head_dim = k.shape
    if num_tokens == 0:
        return
    assert k.stride()[1:] == v.stride()[1:] == (head_dim, 1)
    width = num_kv_heads * head_dim
    _store[(num_tokens,)](
        k,
        v,
        keys,
        values,
        slot_mapping,
        k.stride(0),
        v.stride(0),
        width=width,
        padded_width=triton.next_power_of_2(width),
    )


@kernel(unaligned=("slot_mapping_ptr",))
def _store(
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    keys_ptr: tl.tensor,
    values_ptr: tl.tensor,
    slot_mapping_ptr: tl.tensor,
    k_stride: tl.tensor,
    v_stride: tl.tensor,
    width: tl.constexpr,
    padded_width: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(slot_mapping_ptr + token).to(tl.int64)
    if place >= 0:
        offsets = tl.arange(0, padded_width)
        is_value = offsets < width
        k = tl.load(k_ptr + token * k_stride + offsets, mask=is_value)
        v = tl.load(v_ptr + token * v_stride + offsets, mask=is_value)
        tl.store(keys_ptr + place * width + offsets, k, mask=is_value)
        tl.store(values_ptr + place * width + offsets, v, mask=is_value)
