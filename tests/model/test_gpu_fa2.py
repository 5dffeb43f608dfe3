"""The flash-attn backend calls the package as it is: rows of all kinds, padding between them."""

import sys
from dataclasses import dataclass
from importlib import import_module

import pytest
import torch

from tests.fakes import flash_attention_2
from worker_svc.attention.backend import LayerCache, StoredBackend
from worker_svc.execution.forward_batch import ForwardBatch
from worker_svc.kernels.references import paged_attention

BLOCK_SIZE, NUM_BLOCKS, WIDTH = 256, 12, 3
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 32


@pytest.fixture(scope="module")
def backend() -> StoredBackend:
    with flash_attention_2.installed():
        made: StoredBackend = import_module("worker_svc.attention.fa2_backend").Fa2Backend()
    # others look for the package by name: the module that found the fake must not be found again
    del sys.modules["worker_svc.attention.fa2_backend"]
    return made


@dataclass(frozen=True)
class Case:
    """Rows that are there, and places for more, as a recorded program has them."""

    singles: list[int]
    chunks: list[tuple[int, int]]
    single_places: int
    chunk_places: int
    token_places: int


CASES = [
    Case([1, 255, 256, 700], [], 4, 0, 4),
    Case([3, 300], [], 5, 0, 5),
    Case([], [(5, 5), (40, 300)], 0, 2, 45),
    Case([9, 400], [(7, 7), (3, 260)], 2, 2, 12),
    Case([9, 400], [(7, 7), (3, 260)], 8, 4, 24),
]


def batch_of(case: Case, table: torch.Tensor) -> ForwardBatch:
    places = case.single_places + case.chunk_places
    first, last = case.single_places, case.single_places + len(case.chunks)
    seqlens = torch.zeros(places, dtype=torch.int32)
    seqlens[: len(case.singles)] = torch.tensor(case.singles, dtype=torch.int32)
    seqlens[first:last] = torch.tensor([keys for _, keys in case.chunks], dtype=torch.int32)
    ends = torch.tensor([0, *(new for new, _ in case.chunks)]).cumsum(0) + len(case.singles)
    cu_seqlens = torch.full((places + 1,), int(ends[-1]), dtype=torch.int32)
    cu_seqlens[first : last + 1] = ends
    nothing = torch.zeros(0)
    chunk_lens = (case.token_places, *(0,) * (case.chunk_places - 1)) if case.chunk_places else ()
    return ForwardBatch(
        token_ids=nothing,
        positions=nothing,
        slot_mapping=nothing,
        block_table=table[:places],
        cu_seqlens_q=cu_seqlens,
        cache_seqlens=seqlens,
        last_indexes=nothing,
        query_lens=(1,) * case.single_places + chunk_lens,
        key_lens=(WIDTH * BLOCK_SIZE,) * places,
        num_single_rows=case.single_places,
    )


@pytest.mark.parametrize("case", CASES)
def test_rows_see_their_own_keys(backend: StoredBackend, case: Case) -> None:
    generator = torch.Generator().manual_seed(1)
    shape = (NUM_BLOCKS, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    keys, values = (torch.randn(shape, generator=generator).bfloat16() for _ in range(2))
    table = torch.randint(1, NUM_BLOCKS, (16, WIDTH), generator=generator, dtype=torch.int32)
    q = torch.randn(case.token_places, NUM_HEADS, HEAD_DIM, generator=generator).bfloat16()
    bound = backend.bind(batch_of(case, table), block_size=BLOCK_SIZE)
    found = bound.attend(q, LayerCache(keys, values))
    rows = [*range(len(case.singles))]
    rows += range(case.single_places, case.single_places + len(case.chunks))
    used = len(case.singles) + sum(new for new, _ in case.chunks)
    expected = paged_attention(
        q[:used],
        keys,
        values,
        block_table=table[rows],
        query_lens=[1] * len(case.singles) + [new for new, _ in case.chunks],
        key_lens=[*case.singles, *(keys for _, keys in case.chunks)],
    )
    torch.testing.assert_close(found[:used].float(), expected, rtol=0.01, atol=0.01)


def test_blocks_that_the_package_refuses_are_refused_by_the_fake(backend: StoredBackend) -> None:
    small = torch.zeros(4, 16, NUM_KV_HEADS, HEAD_DIM, dtype=torch.bfloat16)
    table = torch.ones(1, WIDTH, dtype=torch.int32)
    bound = backend.bind(batch_of(Case([3], [], 1, 0, 1), table), block_size=16)
    with pytest.raises(AssertionError, match="divisible by 256"):
        bound.attend(
            torch.zeros(1, NUM_HEADS, HEAD_DIM, dtype=torch.bfloat16), LayerCache(small, small)
        )
