"""What each kernel computes, in plain torch and float32: the oracle of tests and benchmarks.

Legends are those of the kernels' own files. Slow on purpose: nothing here shares an idea with the
kernels.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Over the last dimension; float32, not rounded back."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + epsilon) * weight.float()


def rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """[N, A, D] with [N, D/2] each: pairs (i, i + D/2) turned; float32."""
    left, right = x.float().chunk(2, dim=-1)
    cosine, sine = cosine.float().unsqueeze(1), sine.float().unsqueeze(1)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """[N, 2F] -> float32 [N, F]."""
    gate, up = x.float().chunk(2, dim=-1)
    return functional.silu(gate) * up


def stored(cache: torch.Tensor, new: torch.Tensor, slot_mapping: torch.Tensor) -> torch.Tensor:
    """The cache [M, B, K, D] with `new` [N, K, D] at its places; negative ones are skipped."""
    result = cache.clone()
    for token, place in enumerate(slot_mapping.tolist()):
        if place >= 0:
            result.flatten(0, 1)[place] = new[token].to(cache.dtype)
    return result


def paged_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    block_table: torch.Tensor,
    query_lens: Sequence[int],
    key_lens: Sequence[int],
) -> torch.Tensor:
    """Causal attention row by row, [N, A, D] in float32; a row's queries are its last keys."""
    out = torch.zeros_like(q, dtype=torch.float32)
    first = 0
    for row, (num_queries, num_keys) in enumerate(zip(query_lens, key_lens, strict=True)):
        if num_queries and num_keys:
            last = first + num_queries
            found = [_row_of(cache, block_table[row], num_keys) for cache in (keys, values)]
            out[first:last] = _attention(q[first:last].float(), *found)
        first += num_queries
    return out


def _row_of(cache: torch.Tensor, blocks: torch.Tensor, num_keys: int) -> torch.Tensor:
    """[M, B, K, D] -> float32 [num_keys, K, D]."""
    num_blocks = -(-num_keys // cache.shape[1])
    return cache[blocks[:num_blocks].long()].flatten(0, 1)[:num_keys].float()


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    num_queries, num_keys, group = q.shape[0], k.shape[0], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.einsum("nad,lad->anl", q, k) / q.shape[2] ** 0.5
    positions = torch.arange(num_keys - num_queries, num_keys, device=q.device)
    is_later = torch.arange(num_keys, device=q.device) > positions[:, None]
    weights = scores.masked_fill(is_later, -torch.inf).softmax(dim=-1)
    return torch.einsum("anl,lad->nad", weights, v)
