"""From the qkv product to attention in one launch: q/k-norm, rotation, storing. Knows no layer.

Legend: N tokens, A query heads, K key heads, D head_dim, L positions of the rotary table, M
blocks, B tokens in a block.

One program takes a few of a token's A + 2K heads, a head a row, its two halves as two tiles,
since rotation pairs element i with element i + D/2. Several heads a program keep reads at 16
bytes a thread and the number of programs small at 256 tokens; at one token they still spread over
several multiprocessors. A program may hold heads of all three kinds: the kind only selects weights
and destinations. All maths in float32, rounded once.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from worker_svc.kernels.jit import kernel

_HEADS_PER_PROGRAM = 8


@dataclass(frozen=True, slots=True, eq=False)
class RotaryTable:
    """Cosine and sine of every position, of any float type."""

    cosine: torch.Tensor  # [L, D/2]
    sine: torch.Tensor  # [L, D/2]


@dataclass(frozen=True, slots=True, eq=False)
class QKNorm:
    """The norms over each query head and each key head."""

    query_weight: torch.Tensor  # [D]
    key_weight: torch.Tensor  # [D]
    epsilon: float


def norm_rotate_store(
    heads: torch.Tensor,
    *,
    norm: QKNorm | None,
    table: RotaryTable,
    positions: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> torch.Tensor:
    """Take the qkv product [N, A + 2K, D]; return the queries for attention, [N, A, D].

    Keys and values go to their places `slot_mapping` [N] in `keys` and `values` [M, B, K, D];
    tokens with a negative place are not stored. Positions [N] are rows of the table.
    """
    num_tokens, num_all_heads, head_dim = heads.shape
    num_kv_heads = keys.shape[2]
    num_heads = num_all_heads - 2 * num_kv_heads
    q = heads.new_empty(num_tokens, num_heads, head_dim)
    if num_tokens == 0:
        return q
    assert heads.is_contiguous()
    _finish_heads[(num_tokens, triton.cdiv(num_all_heads, _HEADS_PER_PROGRAM))](
        heads,
        q,
        keys,
        values,
        table.cosine,
        table.sine,
        heads if norm is None else norm.query_weight,
        heads if norm is None else norm.key_weight,
        positions,
        slot_mapping,
        epsilon=0.0 if norm is None else norm.epsilon,
        has_norm=norm is not None,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        half=head_dim // 2,
        padded_half=triton.next_power_of_2(head_dim // 2),
        heads_per_program=_HEADS_PER_PROGRAM,
        num_warps=2,
    )
    return q


@kernel(unaligned=("positions_ptr", "slot_mapping_ptr"))
def _finish_heads(
    heads_ptr: tl.tensor,
    q_ptr: tl.tensor,
    keys_ptr: tl.tensor,
    values_ptr: tl.tensor,
    cosine_ptr: tl.tensor,
    sine_ptr: tl.tensor,
    query_weight_ptr: tl.tensor,
    key_weight_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    slot_mapping_ptr: tl.tensor,
    epsilon: tl.constexpr,
    has_norm: tl.constexpr,
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    half: tl.constexpr,
    padded_half: tl.constexpr,
    heads_per_program: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(slot_mapping_ptr + token).to(tl.int64)
    position = tl.load(positions_ptr + token).to(tl.int64)
    head = tl.program_id(1) * heads_per_program + tl.arange(0, heads_per_program)
    is_query = head < num_heads
    is_key = (head >= num_heads) & (head < num_heads + num_kv_heads)
    is_value = (head >= num_heads + num_kv_heads) & (head < num_heads + 2 * num_kv_heads)

    pair = tl.arange(0, padded_half)
    is_pair = (pair < half)[None, :]
    is_read = (is_query | is_key | is_value)[:, None] & is_pair
    offsets = head[:, None] * (2 * half) + pair[None, :]
    source = heads_ptr + token * (num_heads + 2 * num_kv_heads) * (2 * half) + offsets
    left = tl.load(source, mask=is_read, other=0.0).to(tl.float32)
    right = tl.load(source + half, mask=is_read, other=0.0).to(tl.float32)
    cosine = tl.load(cosine_ptr + position * half + pair, mask=pair < half, other=0.0)
    sine = tl.load(sine_ptr + position * half + pair, mask=pair < half, other=0.0)
    cosine, sine = cosine.to(tl.float32)[None, :], sine.to(tl.float32)[None, :]

    normed_left, normed_right = left, right
    if has_norm:
        square = tl.sum(left * left + right * right, axis=1) / (2 * half)
        scale = tl.rsqrt(square + epsilon)[:, None]
        weights = _weights(query_weight_ptr, key_weight_ptr, is_query, pair, half)
        normed_left = left * scale * weights
        weights = _weights(query_weight_ptr + half, key_weight_ptr + half, is_query, pair, half)
        normed_right = right * scale * weights
    turned_left = normed_left * cosine - normed_right * sine
    turned_right = normed_right * cosine + normed_left * sine

    q = q_ptr + token * num_heads * (2 * half) + offsets
    tl.store(q, turned_left, mask=is_query[:, None] & is_pair)
    tl.store(q + half, turned_right, mask=is_query[:, None] & is_pair)
    if place >= 0:
        at_place = place * num_kv_heads * (2 * half) + offsets
        key = keys_ptr + at_place - num_heads * (2 * half)
        tl.store(key, turned_left, mask=is_key[:, None] & is_pair)
        tl.store(key + half, turned_right, mask=is_key[:, None] & is_pair)
        value = values_ptr + at_place - (num_heads + num_kv_heads) * (2 * half)
        tl.store(value, left, mask=is_value[:, None] & is_pair)
        tl.store(value + half, right, mask=is_value[:, None] & is_pair)


@kernel()
def _weights(
    query_weight_ptr: tl.tensor,
    key_weight_ptr: tl.tensor,
    is_query: tl.tensor,
    pair: tl.tensor,
    half: tl.constexpr,
) -> tl.tensor:
    """The norm's weights of half a head, one row a head."""
    for_query = tl.load(query_weight_ptr + pair, mask=pair < half, other=0.0)
    for_key = tl.load(key_weight_ptr + pair, mask=pair < half, other=0.0)
    return tl.where(is_query[:, None], for_query[None, :], for_key[None, :]).to(tl.float32)
