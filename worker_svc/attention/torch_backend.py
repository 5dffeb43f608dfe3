"""Attention with torch alone: the CPU's backend, and the reference for the others.

Legend: N tokens, A query heads, K key heads, G = A / K, D head_dim, B tokens in a block, P =
blocks * B places in the cache, L keys of the longest row of a group.

Single rows (decode) of like length run as one batch: their keys are gathered by place, short rows
padded with place 0. That place lies in the trash block, which this backend never writes, so
padding reads zeros and not a number that is none; chunk rows run one by one over exactly their
keys. Measured for 9 / 3 heads of 64 on two cores: 8 rows of 128 keys take 100 us in one batch and
250 us one by one.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from worker_svc.attention.backend import LayerCache
from worker_svc.execution.forward_batch import ForwardBatch

_MOST_PADDING = 1.25
_FREE_PADDING = 32


class TorchBackend:
    """Binds batches; owns the memory that gathered keys and values pass through."""

    def __init__(self) -> None:
        self._scratch = _Scratch()

    def bind(self, batch: ForwardBatch, *, block_size: int) -> "TorchStepAttention":
        """Work out the step's cache places, once for all layers."""
        return TorchStepAttention(
            scratch=self._scratch,
            stored=_stored_tokens(batch),
            groups=tuple(_single_groups(batch, block_size)),
            chunks=tuple(_chunk_rows(batch, block_size)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _StoredTokens:
    """Which tokens go into the cache; `tokens` None means all of them."""

    places: torch.Tensor  # int64 [stored]
    tokens: torch.Tensor | None  # int64 [stored]


@dataclass(frozen=True, slots=True, eq=False)
class _SingleGroup:
    """Decode rows of like length: tokens first..last of the batch."""

    first: int
    last: int
    num_keys: int
    places: torch.Tensor  # int64 [rows * L]
    mask: torch.Tensor | None  # bool [rows, 1, 1, L]; None when no row is padded


@dataclass(frozen=True, slots=True, eq=False)
class _ChunkRow:
    """One row of several query tokens: tokens first..last of the batch."""

    first: int
    last: int
    places: torch.Tensor | None  # int64 [L]; None when the chunk holds all its keys itself
    mask: torch.Tensor | None  # bool [tokens, L]


class TorchStepAttention:
    """One step: `StepAttention` over torch's own attention."""

    def __init__(
        self,
        *,
        scratch: "_Scratch",
        stored: _StoredTokens,
        groups: Sequence[_SingleGroup],
        chunks: Sequence[_ChunkRow],
    ) -> None:
        self._scratch = scratch
        self._stored = stored
        self._groups = groups
        self._chunks = chunks

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cache: LayerCache
    ) -> torch.Tensor:
        """Take q [N, A, D], k and v [N, K, D]; return [N, A, D]."""
        keys, values = _by_place(cache.keys), _by_place(cache.values)
        self._store(k, keys)
        self._store(v, values)
        out = torch.empty_like(q)
        for group in self._groups:
            rows = slice(group.first, group.last)
            out[rows] = self._attend_singles(q[rows], k.shape[1:], group, keys, values)
        for chunk in self._chunks:
            rows = slice(chunk.first, chunk.last)
            out[rows] = self._attend_chunk(q[rows], k[rows], v[rows], chunk, keys, values)
        return out

    def _store(self, new: torch.Tensor, by_place: torch.Tensor) -> None:
        tokens = self._stored.tokens
        kept = new if tokens is None else new.index_select(0, tokens)
        by_place.index_copy_(0, self._stored.places, kept.flatten(1))

    def _attend_singles(
        self,
        q: torch.Tensor,
        head_shape: torch.Size,
        group: _SingleGroup,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        num_rows, num_kv_heads, head_dim = q.shape[0], *head_shape
        found_keys, found_values = self._scratch.gather(keys, values, group.places)
        shape = (num_rows, group.num_keys, num_kv_heads, head_dim)
        # the G query heads of a key head become G query positions: [rows, K, G, D]
        out = functional.scaled_dot_product_attention(
            q.reshape(num_rows, num_kv_heads, -1, head_dim),
            found_keys.view(shape).transpose(1, 2),
            found_values.view(shape).transpose(1, 2),
            attn_mask=group.mask,
        )
        return out.reshape(q.shape)

    def _attend_chunk(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        chunk: _ChunkRow,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        if chunk.places is not None:
            found_keys, found_values = self._scratch.gather(keys, values, chunk.places)
            k, v = found_keys.view(-1, *k.shape[1:]), found_values.view(-1, *v.shape[1:])
        out = functional.scaled_dot_product_attention(
            q.transpose(0, 1).unsqueeze(0),
            k.transpose(0, 1).unsqueeze(0),
            v.transpose(0, 1).unsqueeze(0),
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return out.squeeze(0).transpose(0, 1)


class _Scratch:
    """Two growing buffers: fresh memory for each layer costs more in page faults than attention."""

    def __init__(self) -> None:
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def gather(
        self, keys: torch.Tensor, values: torch.Tensor, places: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows `places` of both, valid until the next call."""
        found_keys, found_values = self._first(places.shape[0], keys)
        torch.index_select(keys, 0, places, out=found_keys)
        torch.index_select(values, 0, places, out=found_values)
        return found_keys, found_values

    def _first(self, num_rows: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self._buffers is None or self._buffers[0].shape[0] < num_rows:
            shape = (1 << (num_rows - 1).bit_length(), like.shape[1])
            self._buffers = (like.new_empty(shape), like.new_empty(shape))
        return self._buffers[0][:num_rows], self._buffers[1][:num_rows]


def _by_place(blocks: torch.Tensor) -> torch.Tensor:
    """[blocks, B, K, D] -> [P, K * D], the same memory."""
    return blocks.view(blocks.shape[0] * blocks.shape[1], -1)


def _stored_tokens(batch: ForwardBatch) -> _StoredTokens:
    is_stored = batch.slot_mapping >= 0
    if bool(is_stored.all()):
        return _StoredTokens(places=batch.slot_mapping, tokens=None)
    tokens = is_stored.nonzero().squeeze(1)
    return _StoredTokens(places=batch.slot_mapping.index_select(0, tokens), tokens=tokens)


def _key_places(block_table: torch.Tensor, num_keys: int, block_size: int) -> torch.Tensor:
    """[rows, blocks] -> int64 [rows, num_keys]: where the first keys of each row lie."""
    blocks = block_table[:, : math.ceil(num_keys / block_size)].long()
    places = blocks.unsqueeze(2) * block_size + torch.arange(block_size)
    return places.flatten(1)[:, :num_keys]


def _single_groups(batch: ForwardBatch, block_size: int) -> Iterator[_SingleGroup]:
    for first, last in _like_lengths(batch.key_lens[: batch.num_single_rows]):
        lengths = batch.key_lens[first:last]
        num_keys = max(lengths)
        places = _key_places(batch.block_table[first:last], num_keys, block_size)
        mask = None
        if min(lengths) < num_keys:
            is_key = torch.arange(num_keys) < batch.cache_seqlens[first:last].unsqueeze(1)
            places = places.where(is_key, 0)
            mask = is_key[:, None, None, :]
        yield _SingleGroup(first, last, num_keys, places.flatten(), mask)


def _like_lengths(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut neighbours into runs that waste little on padding (best when sorted)."""
    first = 0
    for row in range(1, len(lengths) + 1):
        run = lengths[first : row + 1]
        is_end = row == len(lengths)
        if is_end or max(run) * len(run) > _MOST_PADDING * sum(run) + _FREE_PADDING * len(run):
            yield first, row
            first = row


def _chunk_rows(batch: ForwardBatch, block_size: int) -> Iterator[_ChunkRow]:
    first = batch.num_single_rows
    for row in range(batch.num_single_rows, batch.num_rows):
        num_queries, num_keys = batch.query_lens[row], batch.key_lens[row]
        places = mask = None
        if num_keys > num_queries:
            places = _key_places(batch.block_table[row : row + 1], num_keys, block_size).flatten()
            first_query = num_keys - num_queries
            mask = torch.arange(num_keys) <= torch.arange(first_query, num_keys).unsqueeze(1)
        yield _ChunkRow(first, first + num_queries, places, mask)
        first += num_queries
