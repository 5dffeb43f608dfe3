"""Paged attention equals plain attention, whatever the lengths, blocks, groups and splits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worker_svc.kernels import references
from worker_svc.kernels.decode_attention import (
    DecodeScratch,
    DecodeTuning,
    choose_num_splits,
    decode_attention,
)
from worker_svc.kernels.prefill_attention import PrefillTuning, prefill_attention

TOLERANCES = {torch.float32: 3e-6, torch.float16: 2e-3}


@dataclass(frozen=True, slots=True, eq=False)
class Paged:
    """Queries and a cache with poison wherever no row's keys lie."""

    q: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    block_table: torch.Tensor
    query_lens: tuple[int, ...]
    key_lens: tuple[int, ...]

    @property
    def cache_seqlens(self) -> torch.Tensor:
        return torch.tensor(self.key_lens, dtype=torch.int32, device=self.q.device)

    @property
    def cu_seqlens_q(self) -> torch.Tensor:
        lengths = torch.tensor((0, *self.query_lens), dtype=torch.int32, device=self.q.device)
        return lengths.cumsum(0).int()

    def expected(self) -> torch.Tensor:
        return references.paged_attention(
            self.q,
            self.keys,
            self.values,
            block_table=self.block_table,
            query_lens=self.query_lens,
            key_lens=self.key_lens,
        )


def paged(
    key_lens: Sequence[int],
    *,
    device: torch.device,
    query_lens: Sequence[int] | None = None,
    block_size: int = 16,
    kv_heads: int = 2,
    group: int = 2,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
) -> Paged:
    generator = torch.Generator().manual_seed(sum(key_lens) + block_size)
    query_lens = tuple(query_lens or (1,) * len(key_lens))
    widths = [-(-length // block_size) for length in key_lens]
    blocks = torch.randperm(sum(widths) + 2, generator=generator) + 1
    table = torch.zeros(len(key_lens), max(widths) + 2, dtype=torch.int32)
    shape = (sum(widths) + 3, block_size, kv_heads, head_dim)
    keys, values = torch.full((2, *shape), float("nan")).unbind(0)
    first = 0
    for row, (width, length) in enumerate(zip(widths, key_lens, strict=True)):
        table[row, :width] = blocks[first : first + width]
        for place in range(length):
            block = int(table[row, place // block_size])
            for cache in (keys, values):
                new = torch.randn(kv_heads, head_dim, generator=generator)
                cache[block, place % block_size] = new
        first += width
    q = torch.randn(sum(query_lens), group * kv_heads, head_dim, generator=generator) * 2
    return Paged(
        q=q.to(device, dtype),
        keys=keys.to(device, dtype),
        values=values.to(device, dtype),
        block_table=table.to(device),
        query_lens=query_lens,
        key_lens=tuple(key_lens),
    )


def decoded(case: Paged, *, num_splits: int, tile: int = 16) -> torch.Tensor:
    num_rows, num_heads, head_dim = case.q.shape
    kv_heads = case.keys.shape[2]
    scratch = DecodeScratch.allocate(
        num_items=num_rows * kv_heads,
        num_parts=num_rows * kv_heads * num_splits,
        group=num_heads // kv_heads,
        head_dim=head_dim,
        device=case.q.device,
    )
    out = decode_attention(
        case.q,
        case.keys,
        case.values,
        block_table=case.block_table,
        cache_seqlens=case.cache_seqlens,
        scratch=scratch,
        num_splits=num_splits,
        tuning=DecodeTuning(tile=tile),
    )
    assert not bool(scratch.counters.any()), "the next launch starts from zeros"
    return out


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCES[found.dtype]
    torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("group", [1, 2, 4, 5, 8])
def test_decode_equals_plain_attention_for_every_head_shape(
    device: torch.device, dtype: torch.dtype, head_dim: int, group: int
) -> None:
    case = paged((1, 37), device=device, group=group, head_dim=head_dim, dtype=dtype)
    assert_near(decoded(case, num_splits=2), case.expected())


@pytest.mark.parametrize("tile", [16, 64, 128])
@pytest.mark.parametrize("block_size", [16, 64, 256])
def test_decode_reads_every_block_size_with_every_tile(
    device: torch.device, block_size: int, tile: int
) -> None:
    case = paged((block_size, 1, 300, 65), device=device, block_size=block_size)
    assert_near(decoded(case, num_splits=3, tile=tile), case.expected())


@settings(max_examples=40)
@given(
    key_lens=st.lists(st.integers(0, 130), min_size=1, max_size=5),
    num_splits=st.integers(1, 9),
)
def test_decode_splits_any_lengths_and_leaves_padding_rows_zero(
    device: torch.device, key_lens: list[int], num_splits: int
) -> None:
    # scenario CG-05: padded rows have length 0
    case = paged(key_lens, device=device, kv_heads=1)
    found = decoded(case, num_splits=num_splits)
    assert_near(found, case.expected())


def test_decode_takes_queries_out_of_a_wider_product(device: torch.device) -> None:
    case = paged((20, 40), device=device)
    wide = torch.full((2, 8, 64), float("nan"), device=device)
    wide[:, :4] = case.q
    strided = replace(case, q=wide[:, :4])
    assert torch.equal(decoded(strided, num_splits=2), decoded(case, num_splits=2))


def test_scratch_serves_launch_after_launch(device: torch.device) -> None:
    cases = [paged(lengths, device=device) for lengths in ((100, 7, 0), (3, 90, 33))]
    scratch = DecodeScratch.allocate(num_items=6, num_parts=24, group=2, head_dim=64, device=device)
    for case in cases * 2:
        out = decode_attention(
            case.q,
            case.keys,
            case.values,
            block_table=case.block_table,
            cache_seqlens=case.cache_seqlens,
            scratch=scratch,
            num_splits=4,
            tuning=DecodeTuning(tile=16),
        )
        assert_near(out, case.expected())


def test_splits_shrink_as_rows_fill_the_device(device: torch.device) -> None:
    splits = [choose_num_splits(rows, 8, device=device) for rows in (1, 2, 8, 64, 256, 512)]
    assert splits == sorted(splits, reverse=True)
    assert splits[-1] == 1


def prefilled(case: Paged, *, tuning: PrefillTuning | None = None) -> torch.Tensor:
    out = torch.zeros_like(case.q)
    prefill_attention(
        case.q,
        case.keys,
        case.values,
        block_table=case.block_table,
        cu_seqlens_q=case.cu_seqlens_q,
        cache_seqlens=case.cache_seqlens,
        num_tokens=case.q.shape[0],
        out=out,
        tuning=tuning,
    )
    return out


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("group", [1, 2, 4, 5, 8])
def test_prefill_equals_plain_attention_for_every_head_shape(
    device: torch.device, dtype: torch.dtype, head_dim: int, group: int
) -> None:
    case = paged(
        (23, 70),
        query_lens=(23, 9),
        device=device,
        group=group,
        head_dim=head_dim,
        dtype=dtype,
        kv_heads=1,
    )
    found = prefilled(case, tuning=PrefillTuning(query_tile=32, tile=16))
    assert_near(found, case.expected())


@pytest.mark.parametrize("tile", [16, 64])
@pytest.mark.parametrize("block_size", [16, 64, 256])
def test_prefill_reads_every_block_size_with_every_tile(
    device: torch.device, block_size: int, tile: int
) -> None:
    lengths = (block_size, block_size + 1, 3)
    case = paged(lengths, query_lens=(block_size, 2, 3), device=device, block_size=block_size)
    assert_near(prefilled(case, tuning=PrefillTuning(tile=tile)), case.expected())


@settings(max_examples=40)
@given(
    rows=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60)), min_size=1, max_size=6),
    query_tile=st.sampled_from((16, 32, 128)),
)
def test_prefill_takes_any_chunks_behind_any_prefixes(
    device: torch.device, rows: list[tuple[int, int]], query_tile: int
) -> None:
    # scenarios CP-01, CG-05: a chunk's keys end with it; padding rows have no queries
    query_lens = [chunk for chunk, _ in rows]
    key_lens = [chunk + prefix if chunk else 0 for chunk, prefix in rows]
    case = paged(key_lens, query_lens=query_lens, device=device, kv_heads=1)
    found = prefilled(case, tuning=PrefillTuning(query_tile=query_tile, tile=16))
    assert_near(found, case.expected())


def test_prefill_begins_behind_the_single_rows(device: torch.device) -> None:
    case = paged((12, 33, 20, 5), query_lens=(1, 1, 20, 4), device=device)
    out = torch.full_like(case.q, 7.0)
    prefill_attention(
        case.q,
        case.keys,
        case.values,
        block_table=case.block_table[2:],
        cu_seqlens_q=case.cu_seqlens_q[2:],
        cache_seqlens=case.cache_seqlens[2:],
        num_tokens=24,
        out=out,
    )
    assert_near(out[2:], case.expected()[2:])
    assert bool((out[:2] == 7.0).all())


def test_prefill_of_a_padded_bucket_writes_no_padding(device: torch.device) -> None:
    case = paged((9, 30), query_lens=(9, 10), device=device)
    padding = torch.full((13, *case.q.shape[1:]), float("nan"), device=device)
    q = torch.cat((case.q, padding))
    out = torch.full_like(q, 7.0)
    none = torch.zeros(3, dtype=torch.int32, device=device)
    prefill_attention(
        q,
        case.keys,
        case.values,
        block_table=torch.cat((case.block_table, case.block_table[:1].expand(3, -1) * 0)),
        cu_seqlens_q=torch.cat((case.cu_seqlens_q, none + 19)),
        cache_seqlens=torch.cat((case.cache_seqlens, none)),
        num_tokens=32,
        out=out,
    )
    assert_near(out[:19], case.expected())
    assert bool((out[19:] == 7.0).all())
