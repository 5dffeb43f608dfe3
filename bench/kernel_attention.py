"""Attention kernels on paged caches of true shapes, beside FlashAttention-3 where it imports."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, product

import torch

from bench.kernel_timing import Launch, Table, Work, relative_error
from worker_svc.kernels import references
from worker_svc.kernels.decode_attention import (
    DecodeScratch,
    DecodeTuning,
    choose_num_splits,
    decode_attention,
)
from worker_svc.kernels.prefill_attention import PrefillTuning, prefill_attention

DEVICE = torch.device("cuda")
KV_HEADS, HEAD_DIM = 8, 128
HEADS = {"0.6B": 16, "8B": 32}
_ROTATED_BYTES = 2e9
_MOST_LAYERS = 28
_CHECKED_ROWS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Paged:
    """Rows over several layers' caches: together larger than the second-level cache."""

    q: torch.Tensor
    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    block_table: torch.Tensor
    cu_seqlens_q: torch.Tensor
    cache_seqlens: torch.Tensor
    query_lens: tuple[int, ...]
    key_lens: tuple[int, ...]
    work: Work

    @classmethod
    def random(
        cls, key_lens: Sequence[int], query_lens: Sequence[int], *, heads: int, block_size: int
    ) -> "Paged":
        """Blocks lie in no order."""
        widths = [-(-length // block_size) for length in key_lens]
        num_blocks = sum(widths) + 1
        shuffled = (torch.randperm(num_blocks - 1) + 1).int()
        table = torch.zeros(len(widths), max(widths), dtype=torch.int32)
        first = 0
        for row, width in enumerate(widths):
            table[row, :width] = shuffled[first : first + width]
            first += width
        shape = (num_blocks, block_size, KV_HEADS, HEAD_DIM)
        layer_bytes = 4 * num_blocks * block_size * KV_HEADS * HEAD_DIM
        num_layers = int(min(_MOST_LAYERS, max(1, _ROTATED_BYTES // layer_bytes)))
        num_tokens = sum(query_lens)
        lengths = torch.tensor([0, *query_lens], device=DEVICE)
        pairs = sum(
            n * (k - n) + n * (n + 1) // 2 for n, k in zip(query_lens, key_lens, strict=True)
        )
        return cls(
            q=torch.randn(num_tokens, heads, HEAD_DIM, device=DEVICE, dtype=torch.bfloat16),
            layers=tuple((_random_cache(shape), _random_cache(shape)) for _ in range(num_layers)),
            block_table=table.to(DEVICE),
            cu_seqlens_q=lengths.cumsum(0).int(),
            cache_seqlens=torch.tensor(key_lens, dtype=torch.int32, device=DEVICE),
            query_lens=tuple(query_lens),
            key_lens=tuple(key_lens),
            work=Work(
                num_bytes=4 * KV_HEADS * HEAD_DIM * sum(key_lens)
                + 4 * num_tokens * heads * HEAD_DIM,
                num_flops=4 * heads * HEAD_DIM * pairs,
            ),
        )

    def error(self, launches: Sequence[Launch]) -> float:
        """Of the first rows, on the first layer's cache."""
        found = launches[0]()
        assert isinstance(found, torch.Tensor)
        count = sum(self.query_lens[:_CHECKED_ROWS])
        expected = references.paged_attention(
            self.q[:count],
            *self.layers[0],
            block_table=self.block_table,
            query_lens=self.query_lens[:_CHECKED_ROWS],
            key_lens=self.key_lens[:_CHECKED_ROWS],
        )
        return relative_error(found.reshape(self.q.shape)[:count], expected)


def _random_cache(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)


def decode_launches(
    case: Paged, num_splits: int | None = None, tuning: DecodeTuning | None = None
) -> list[Launch]:
    num_rows, heads = case.q.shape[:2]
    splits = num_splits or choose_num_splits(num_rows, KV_HEADS, device=DEVICE)
    scratch = DecodeScratch.allocate(
        num_items=num_rows * KV_HEADS,
        num_parts=num_rows * KV_HEADS * splits,
        group=heads // KV_HEADS,
        head_dim=HEAD_DIM,
        device=DEVICE,
    )
    return [
        partial(
            decode_attention,
            case.q,
            keys,
            values,
            block_table=case.block_table,
            cache_seqlens=case.cache_seqlens,
            scratch=scratch,
            num_splits=splits,
            tuning=tuning,
        )
        for keys, values in case.layers
    ]


def prefill_launches(case: Paged, tuning: PrefillTuning | None = None) -> list[Launch]:
    def launch(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(case.q)
        prefill_attention(
            case.q,
            keys,
            values,
            block_table=case.block_table,
            cu_seqlens_q=case.cu_seqlens_q,
            cache_seqlens=case.cache_seqlens,
            num_tokens=case.q.shape[0],
            out=out,
            tuning=tuning,
        )
        return out

    return [partial(launch, *layer) for layer in case.layers]


def fa3_launches(case: Paged) -> list[Launch]:
    import flash_attn_interface as fa3  # noqa: PLC0415 optional, and only on Hopper

    heads, most_queries = case.q.shape[1], max(case.query_lens)
    is_decode = most_queries == 1
    metadata = fa3.get_scheduler_metadata(
        len(case.key_lens),
        most_queries,
        max(case.key_lens),
        heads,
        KV_HEADS,
        HEAD_DIM,
        case.cache_seqlens,
        cu_seqlens_q=None if is_decode else case.cu_seqlens_q,
        page_size=case.layers[0][0].shape[1],
        causal=True,
    )
    chunk = {} if is_decode else {"cu_seqlens_q": case.cu_seqlens_q, "max_seqlen_q": most_queries}
    return [
        partial(
            fa3.flash_attn_with_kvcache,
            case.q.unsqueeze(1) if is_decode else case.q,
            keys,
            values,
            cache_seqlens=case.cache_seqlens,
            page_table=case.block_table,
            causal=True,
            scheduler_metadata=metadata,
            **chunk,
        )
        for keys, values in case.layers
    ]


DECODE_LENGTHS = {
    "1 x 1k": [1024],
    "1 x 4k": [4096],
    "1 x 16k": [16384],
    "8 x 1k": [1024] * 8,
    "8 x 4k": [4096] * 8,
    "32 x 1k": [1024] * 32,
    "64 x 4k": [4096] * 64,
    "256 x 1k": [1024] * 256,
    "256 x 100..2048": sorted((100 + 1948 * row // 255 for row in range(256)), reverse=True),
}
PREFILL_LENGTHS = {
    "1 x 128": ([128], [128]),
    "1 x 1k": ([1024], [1024]),
    "1 x 8k": ([8192], [8192]),
    "8 x 512": ([512] * 8, [512] * 8),
    "4 x 64 behind 2k": ([2112] * 4, [64] * 4),
}


def decode(table: Table, block_sizes: Sequence[int]) -> None:
    for (model, heads), block_size in product(HEADS.items(), block_sizes):
        for name, key_lens in DECODE_LENGTHS.items():
            case = Paged.random(key_lens, [1] * len(key_lens), heads=heads, block_size=block_size)
            shape = f"{model} {name}, block {block_size}"
            for variant, make in (("ours", decode_launches), ("fa3", fa3_launches)):
                table.add(
                    "decode", shape, variant, partial(make, case), work=case.work, error=case.error
                )


def prefill(table: Table, block_sizes: Sequence[int]) -> None:
    for (model, heads), block_size in product(HEADS.items(), block_sizes):
        for name, (key_lens, query_lens) in PREFILL_LENGTHS.items():
            case = Paged.random(key_lens, query_lens, heads=heads, block_size=block_size)
            shape = f"{model} {name}, block {block_size}"
            for variant, make in (("ours", prefill_launches), ("fa3", fa3_launches)):
                table.add(
                    "prefill", shape, variant, partial(make, case), work=case.work, error=case.error
                )


DECODE_TUNINGS = (
    DecodeTuning(tile=64, num_warps=4, num_stages=2),
    DecodeTuning(tile=64, num_warps=4, num_stages=3),
    DecodeTuning(tile=64, num_warps=4, num_stages=4),
    DecodeTuning(tile=64, num_warps=2, num_stages=3),
    DecodeTuning(tile=32, num_warps=2, num_stages=3),
    DecodeTuning(tile=32, num_warps=1, num_stages=4),
    DecodeTuning(tile=16, num_warps=1, num_stages=5),
    DecodeTuning(tile=128, num_warps=4, num_stages=2),
    DecodeTuning(tile=128, num_warps=8, num_stages=3),
)
PREFILL_TUNINGS = (
    PrefillTuning(tile=64, num_warps=8, num_stages=2),
    PrefillTuning(tile=128, num_warps=8, num_stages=2),
    PrefillTuning(tile=128, num_warps=8, num_stages=3),
    PrefillTuning(query_tile=64, tile=64, num_warps=4, num_stages=2),
    PrefillTuning(query_tile=64, tile=64, num_warps=4, num_stages=3),
)
SPLITS = {"1 x 1k": (8, 16, 32), "8 x 4k": (2, 4, 8), "64 x 4k": (1, 2), "256 x 1k": (1, 2, 4)}


def tune(table: Table, block_sizes: Sequence[int]) -> None:
    block_size = block_sizes[-1]
    for model, heads in HEADS.items():
        for name, splits in SPLITS.items():
            key_lens = DECODE_LENGTHS[name]
            case = Paged.random(key_lens, [1] * len(key_lens), heads=heads, block_size=block_size)
            for tuning, num_splits in product(DECODE_TUNINGS, splits):
                text = f"tile {tuning.tile} warps {tuning.num_warps} stages {tuning.num_stages}"
                make = partial(decode_launches, case, num_splits, tuning)
                shape = f"{model} {name}, splits {num_splits}"
                table.add("tune", shape, text, make, work=case.work, error=case.error)
        for name, (key_lens, query_lens) in islice(PREFILL_LENGTHS.items(), 1, 3):
            case = Paged.random(key_lens, query_lens, heads=heads, block_size=block_size)
            for wider in PREFILL_TUNINGS:
                text = (
                    f"tile {wider.query_tile}x{wider.tile} warps {wider.num_warps} "
                    f"stages {wider.num_stages}"
                )
                make = partial(prefill_launches, case, wider)
                table.add("tune", f"{model} {name}", text, make, work=case.work, error=case.error)
