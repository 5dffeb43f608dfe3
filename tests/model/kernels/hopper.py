"""Compiles every kernel for Hopper without a device: launchers run, launches stop after compiling.

Run as a program, in a process of its own (`TRITON_INTERPRET` unset): prints one JSON object a
kernel. Triton brings its own assembler, so what passes here loads on the device.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from worker_svc.kernels.activation import silu_and_mul
from worker_svc.kernels.decode_attention import DecodeScratch, DecodeTuning, decode_attention
from worker_svc.kernels.decode_columns import DecodeColumns
from worker_svc.kernels.decode_inputs import DecodeInputs, prepare_decode
from worker_svc.kernels.kv_store import store_kvcache
from worker_svc.kernels.norm import add_rms_norm, rms_norm
from worker_svc.kernels.prefill_attention import PrefillTuning, prefill_attention
from worker_svc.kernels.rank_sum import RankBuffers, sum_add_rms_norm
from worker_svc.kernels.rotate_and_store import QKNorm, RotaryTable, norm_rotate_store
from worker_svc.kernels.sampling import (
    ChosenTokens,
    RowSampling,
    best_of_chunks,
    finish,
    gathered,
    shard_best,
)


class Recorder:
    """Stands for the device: every launch compiles, none runs."""

    def __init__(self) -> None:
        self.compiled: dict[str, Any] = {}

    def install(self) -> None:
        target = GPUTarget("cuda", 90, 32)
        driver.set_active(
            SimpleNamespace(
                get_current_target=lambda: target,
                get_current_device=lambda: 0,
                get_current_stream=lambda _: 0,
            )
        )
        run = JITFunction.run

        def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
            found = run(kernel, *args, grid=grid, warmup=True, **options)
            self.compiled[f"{kernel.__name__}#{len(self.compiled)}"] = found

        JITFunction.run = compile_only


BF16 = torch.bfloat16
CPU = torch.device("cpu")


def zeros(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def layer_kernels() -> None:
    hidden = zeros(4, 1024)
    rms_norm(hidden, zeros(1024), epsilon=1e-6)
    add_rms_norm(hidden, hidden, zeros(1024), epsilon=1e-6)
    add_rms_norm(zeros(4, 4096), zeros(4, 4096), zeros(4096), epsilon=1e-6)
    silu_and_mul(zeros(4, 6144))
    keys = zeros(8, 16, 8, 128)
    places = zeros(4, dtype=torch.int64)
    store_kvcache(zeros(4, 8, 128), zeros(4, 8, 128), keys=keys, values=keys, slot_mapping=places)
    norm_rotate_store(
        zeros(4, 32, 128),
        norm=QKNorm(zeros(128), zeros(128), 1e-6),
        table=RotaryTable(zeros(64, 64), zeros(64, 64)),
        positions=places,
        keys=keys,
        values=keys,
        slot_mapping=places,
    )


def sampling_kernels() -> None:
    column = zeros(4, dtype=torch.int32)
    rows = RowSampling(
        temperature=column.float(),
        seeds=column.long(),
        positions=column,
        min_position=column,
        stop_ids=zeros(4, 2, dtype=torch.int32),
    )
    logits = zeros(4, 151_936)
    best = best_of_chunks(logits, rows, first_id=0, num_tokenizer_ids=151_669)
    masked = replace(rows, mask_rows=column, mask_words=zeros(2, 4748, dtype=torch.int32))
    best_of_chunks(logits, masked, first_id=0, num_tokenizer_ids=151_669)
    finish(best, ChosenTokens(column, column, column, column))
    pairs = torch.stack((shard_best(best), shard_best(best)))
    finish(gathered(pairs), ChosenTokens(column, column, column, column))


def decode_kernels() -> None:
    for block_size, group, tuning in (
        (16, 2, DecodeTuning()),
        (256, 2, DecodeTuning()),
        (16, 4, DecodeTuning(tile=128, num_stages=2)),
        (64, 8, DecodeTuning(tile=32, num_warps=2)),
    ):
        keys = zeros(4, block_size, 8, 128)
        scratch = DecodeScratch.allocate(
            num_items=32, num_parts=64, group=group, head_dim=128, device=CPU
        )
        decode_attention(
            zeros(4, 8 * group, 128),
            keys,
            keys,
            block_table=zeros(4, 9, dtype=torch.int32),
            cache_seqlens=zeros(4, dtype=torch.int32),
            scratch=scratch,
            num_splits=2,
            tuning=tuning,
        )


def prefill_kernels() -> None:
    for block_size, group, num_tokens, tuning in (
        (16, 2, 512, PrefillTuning()),
        (256, 4, 512, PrefillTuning(tile=128, num_stages=2)),
        (64, 2, 8, PrefillTuning()),
    ):
        keys = zeros(4, block_size, 8, 128)
        q = zeros(num_tokens, 8 * group, 128)
        prefill_attention(
            q,
            keys,
            keys,
            block_table=zeros(4, 9, dtype=torch.int32),
            cu_seqlens_q=zeros(5, dtype=torch.int32),
            cache_seqlens=zeros(4, dtype=torch.int32),
            num_tokens=num_tokens,
            out=q,
            tuning=tuning,
        )


def input_kernels() -> None:
    packed = zeros(DecodeColumns.num_words(4, num_stop_ids=2), dtype=torch.int32)
    columns = DecodeColumns.of(packed, num_rows=4, num_stop_ids=2)
    prepare_decode(
        columns,
        DecodeInputs.allocate(4, num_blocks=40, device=CPU),
        last_tokens=zeros(9, dtype=torch.int64),
        tables=zeros(9, 40, dtype=torch.int32),
        block_size=16,
    )


def rank_kernels() -> None:
    for num_ranks, hidden in ((2, 4096), (8, 5120)):
        buffers = RankBuffers(
            addresses=zeros(num_ranks, dtype=torch.int64),
            rank=1,
            num_ranks=num_ranks,
            num_blocks=128,
            bytes_per_region=1 << 17,
        )
        for is_two_shot in (False, True):
            sum_add_rms_norm(
                zeros(4, hidden),
                zeros(4, hidden),
                zeros(hidden),
                epsilon=1e-6,
                buffers=buffers,
                is_two_shot=is_two_shot,
            )


PARTS: dict[str, Callable[[], None]] = {
    "layer": layer_kernels,
    "sampling": sampling_kernels,
    "decode": decode_kernels,
    "prefill": prefill_kernels,
    "inputs": input_kernels,
    "ranks": rank_kernels,
}


def main(names: list[str]) -> None:
    recorder = Recorder()
    recorder.install()
    for name in names or PARTS:
        PARTS[name]()
    for name, found in recorder.compiled.items():
        facts = {"shared": found.metadata.shared, "warps": found.metadata.num_warps}
        line = json.dumps({"kernel": name, "triton": triton.__version__, **facts})
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
