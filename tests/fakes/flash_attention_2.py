"""Stands for the package `flash-attn` 2.8: its two functions' signatures and rules, torch's maths.

Argument names, their order, and what is refused are the package's; what is computed is the
float32 reference, so that a backend written against it is checked whole without a GPU.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch

from worker_svc.kernels.references import paged_attention

_BLOCK_MULTIPLE = 256


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002 - the package's signature
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,  # noqa: FBT001, FBT002
    return_attn_probs: bool = False,  # noqa: FBT001, FBT002
    block_table: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rows of any length over their own keys; [N, A, D]."""
    assert block_table is not None, "this project's keys are always paged"
    _check(q, k, v, block_table, causal=causal)
    num_rows = cu_seqlens_q.shape[0] - 1
    assert cu_seqlens_k.shape[0] - 1 == block_table.shape[0] == num_rows
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    query_lens = cu_seqlens_q.diff().tolist()
    key_lens = cu_seqlens_k.diff().tolist()
    assert max(query_lens) <= max_seqlen_q
    assert max(key_lens) <= max_seqlen_k
    first, last = int(cu_seqlens_q[0]), int(cu_seqlens_q[-1])
    out = torch.full_like(q, torch.nan)  # tokens of no row are left as they were in memory
    out[first:last] = paged_attention(
        q[first:last], k, v, block_table=block_table, query_lens=query_lens, key_lens=key_lens
    ).to(q.dtype)
    return out


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002 - the package's signature
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,  # noqa: FBT001, FBT002
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,  # noqa: FBT001, FBT002
) -> torch.Tensor:
    """[R, Q, A, D] of as many queries a row, its last keys' ones."""
    assert block_table is not None
    assert cache_seqlens is not None
    _check(q.flatten(0, 1), k_cache, v_cache, block_table, causal=causal)
    assert cache_seqlens.dtype == torch.int32
    num_rows, num_queries = q.shape[:2]
    assert cache_seqlens.shape[0] == block_table.shape[0] == num_rows
    out = paged_attention(
        q.flatten(0, 1),
        k_cache,
        v_cache,
        block_table=block_table,
        query_lens=[num_queries] * num_rows,
        key_lens=cache_seqlens.tolist(),
    )
    return out.view(q.shape).to(q.dtype)


def _check(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, *, causal: bool
) -> None:
    assert causal
    assert q.dtype in {torch.float16, torch.bfloat16}, "FlashAttention only support fp16 and bf16"
    assert q.dtype == k.dtype == v.dtype
    assert k.shape[1] % _BLOCK_MULTIPLE == 0, "Paged KV cache block size must be divisible by 256"
    assert table.dtype == torch.int32, "block_table must have dtype torch.int32"
    assert table.stride(-1) == 1, "block_table must have contiguous last dimension"
    assert q.shape[-1] <= 256


@contextmanager
def installed() -> Iterator[None]:
    """`import flash_attn` finds this while the context lasts, and nothing afterwards."""
    module = ModuleType("flash_attn")
    module.__dict__.update(
        flash_attn_varlen_func=flash_attn_varlen_func,
        flash_attn_with_kvcache=flash_attn_with_kvcache,
    )
    sys.modules["flash_attn"] = module
    try:
        yield
    finally:
        del sys.modules["flash_attn"]
