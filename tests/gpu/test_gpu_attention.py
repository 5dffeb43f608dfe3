"""Every backend attends as the float32 reference does: rows of all kinds, and padding between."""

from dataclasses import dataclass

import pytest
import torch

from tests.gpu.device_rig import DTYPE, GPU, qwen3_spec
from worker_svc.attention.backend import LayerCache
from worker_svc.attention.choice import is_installed
from worker_svc.execution.forward_batch import ForwardBatch
from worker_svc.gpu_backend import backend_named
from worker_svc.kernels.references import paged_attention

NUM_BLOCKS, MOST_KEYS = 400, 640
# bfloat16 keeps 8 bits; a mean over keys loses little more than its rounding
TOLERANCE = 0.01

BACKENDS = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(not is_installed(package), reason=f"{package} is not installed"),
    )
    for name, package in (("fa3", "flash_attn_3"), ("fa2", "flash_attn"), ("triton", "triton"))
]
BLOCK_SIZES = {"fa2": 256}


@dataclass(frozen=True)
class Case:
    """Rows that are there, and places for more."""

    singles: list[int]  # keys of each decode row
    chunks: list[tuple[int, int]]  # new tokens and keys of each chunk row
    single_places: int
    chunk_places: int
    token_places: int


CASES = {
    "decode": Case([1, 15, 16, 17, 333, 600], [], 8, 0, 8),
    "one row": Case([640], [], 1, 0, 1),
    "prompts": Case([], [(1, 1), (16, 16), (130, 130), (7, 300), (64, 64)], 0, 5, 218),
    "mixed": Case([5, 100, 640], [(40, 40), (3, 77), (129, 500)], 3, 3, 175),
    "mixed with padding": Case([5, 100, 640], [(40, 40), (3, 77)], 64, 16, 128),
    "padding alone": Case([], [], 16, 16, 32),
}


def batch_of(case: Case, table: torch.Tensor) -> ForwardBatch:
    places = case.single_places + case.chunk_places
    seqlens = torch.zeros(places, dtype=torch.int32)
    seqlens[: len(case.singles)] = torch.tensor(case.singles, dtype=torch.int32)
    first, last = case.single_places, case.single_places + len(case.chunks)
    seqlens[first:last] = torch.tensor([keys for _, keys in case.chunks], dtype=torch.int32)
    ends = torch.tensor([0, *(new for new, _ in case.chunks)]).cumsum(0) + len(case.singles)
    cu_seqlens = torch.zeros(places + 1, dtype=torch.int32)
    cu_seqlens[first:] = ends[-1]
    cu_seqlens[first : last + 1] = ends
    nothing = torch.zeros(0, device=GPU)
    chunk_lens = (case.token_places, *(0,) * (case.chunk_places - 1)) if case.chunk_places else ()
    return ForwardBatch(
        token_ids=nothing,
        positions=nothing,
        slot_mapping=nothing,
        block_table=table[:places].to(GPU),
        cu_seqlens_q=cu_seqlens.to(GPU),
        cache_seqlens=seqlens.to(GPU),
        last_indexes=nothing,
        query_lens=(1,) * case.single_places + chunk_lens,
        key_lens=(MOST_KEYS,) * places,
        num_single_rows=case.single_places,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(16, 8), (32, 8), (8, 1)])
@pytest.mark.parametrize("name", CASES)
def test_rows_see_their_own_keys(
    name: str, num_heads: int, num_kv_heads: int, backend: str
) -> None:
    case = CASES[name]
    generator = torch.Generator(GPU).manual_seed(1)
    spec = qwen3_spec(heads=num_heads, kv_heads=num_kv_heads)
    block_size = BLOCK_SIZES.get(backend, 16)
    shape = (NUM_BLOCKS, block_size, num_kv_heads, spec.head_dim)
    cache = LayerCache(
        *(torch.randn(shape, device=GPU, dtype=DTYPE, generator=generator) for _ in range(2))
    )
    width = -(-MOST_KEYS // block_size)
    table = torch.randint(1, NUM_BLOCKS, (128, width), dtype=torch.int32)
    q = torch.randn(
        case.token_places, num_heads, spec.head_dim, device=GPU, dtype=DTYPE, generator=generator
    )
    fused = backend_named(backend, spec, most_rows=128, device=GPU, dtype=DTYPE)
    bound = fused.attention.bind(batch_of(case, table), block_size=block_size)
    found = bound.attend(q, cache)
    rows = [*range(len(case.singles))]
    rows += range(case.single_places, case.single_places + len(case.chunks))
    expected = paged_attention(
        q,
        cache.keys,
        cache.values,
        block_table=table[rows].to(GPU),
        query_lens=[1] * len(case.singles) + [new for new, _ in case.chunks],
        key_lens=[*case.singles, *(keys for _, keys in case.chunks)],
    )
    used = len(case.singles) + sum(new for new, _ in case.chunks)
    torch.cuda.synchronize()
    if used:
        error = (found[:used].float() - expected[:used]).norm() / expected[:used].norm()
        assert float(error) < TOLERANCE
