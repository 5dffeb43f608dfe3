"""Every kernel on this GPU: time, share of its floor, error, beside what torch offers.

    python bench/kernels.py [--only layer,sampling,inputs,decode,prefill,tune] [--json FILE]

Shapes are those of Qwen3-0.6B and 8B in bfloat16. Times are those of launches inside a replayed
graph. Attention rotates through as many caches as the second-level cache cannot hold; activations
and logits are where a step would have left them.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from bench import kernel_attention
from bench.kernel_timing import HEAD, Launch, Table, Work, measure_ceilings, relative_error
from worker_svc.execution.noise import noise_keys
from worker_svc.execution.sampler import Sampler
from worker_svc.execution.sampling_plan import NoisyRows, SamplingPlan, VocabularyPart
from worker_svc.kernels import references
from worker_svc.kernels.activation import silu_and_mul
from worker_svc.kernels.decode_columns import DecodeColumns
from worker_svc.kernels.decode_inputs import DecodeInputs, prepare_decode
from worker_svc.kernels.norm import add_rms_norm
from worker_svc.kernels.rotate_and_store import QKNorm, RotaryTable, norm_rotate_store
from worker_svc.kernels.sampling import ChosenTokens, RowSampling, best_of_chunks, finish
from worker_svc.parallel.group import SingleRank

DEVICE = torch.device("cuda")
VOCABULARY, NUM_TOKENIZER_IDS = 151_936, 151_669
EPSILON = 1e-6
TOKENS = (1, 8, 64, 256, 1024)
ROWS = (1, 8, 64, 256)


@dataclass(frozen=True, slots=True)
class Shapes:
    """One model's layer."""

    hidden: int
    heads: int
    inter: int


MODELS = {"0.6B": Shapes(1024, 16, 3072), "8B": Shapes(4096, 32, 12288)}
KV_HEADS, HEAD_DIM = kernel_attention.KV_HEADS, kernel_attention.HEAD_DIM


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)


def one(launch: Launch) -> Callable[[], Sequence[Launch]]:
    return lambda: [launch]


def layer(table: Table, _: Sequence[int]) -> None:
    for model, shapes in MODELS.items():
        for tokens in TOKENS:
            name = f"{model} {tokens} tokens"
            _norm(table, name, tokens, shapes)
            _activation(table, name, tokens, shapes)
            _rotate(table, name, tokens, shapes)


def _norm(table: Table, name: str, tokens: int, shapes: Shapes) -> None:
    x, residual, weight = (random(tokens, shapes.hidden) for _ in range(3))
    weight = weight[0].contiguous()
    work = Work(num_bytes=4 * x.nbytes)

    def torch_launch() -> torch.Tensor:
        return functional.rms_norm(x + residual, (shapes.hidden,), weight, EPSILON)

    ours = partial(add_rms_norm, x, residual, weight, epsilon=EPSILON)
    expected = references.rms_norm(x + residual, weight, EPSILON)
    table.add(
        "norm",
        name,
        "ours",
        one(ours),
        work=work,
        error=lambda _: relative_error(ours()[0], expected),
    )
    table.add("norm", name, "torch, 2 launches", one(torch_launch), work=work)


def _activation(table: Table, name: str, tokens: int, shapes: Shapes) -> None:
    x = random(tokens, 2 * shapes.inter)
    work = Work(num_bytes=1.5 * x.nbytes)

    def torch_launch() -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)

    ours = partial(silu_and_mul, x)
    table.add(
        "silu_mul",
        name,
        "ours",
        one(ours),
        work=work,
        error=lambda _: relative_error(ours(), references.silu_and_mul(x)),
    )
    table.add("silu_mul", name, "torch, 2 launches", one(torch_launch), work=work)


def _rotate(table: Table, name: str, tokens: int, shapes: Shapes) -> None:
    heads = random(tokens, shapes.heads + 2 * KV_HEADS, HEAD_DIM)
    angles = torch.rand(4096, HEAD_DIM // 2, device=DEVICE) * 6
    rotary = RotaryTable(angles.cos().bfloat16(), angles.sin().bfloat16())
    norm = QKNorm(random(HEAD_DIM), random(HEAD_DIM), EPSILON)
    keys, values = random(2, 512, 64, KV_HEADS, HEAD_DIM).unbind(0)
    positions = torch.randint(0, 4096, (tokens,), device=DEVICE)
    places = torch.randperm(512 * 64, device=DEVICE)[:tokens]
    ours = partial(
        norm_rotate_store,
        heads,
        norm=norm,
        table=rotary,
        positions=positions,
        keys=keys,
        values=values,
        slot_mapping=places,
    )

    def error(_: Sequence[Launch]) -> float:
        q = references.rms_norm(heads[:, : shapes.heads], norm.query_weight, EPSILON)
        rows = (rotary.cosine[positions], rotary.sine[positions])
        return relative_error(ours(), references.rotated(q, *rows))

    table.add("rotate", name, "ours", one(ours), work=Work(2 * heads.nbytes), error=error)


def sampling(table: Table, _: Sequence[int]) -> None:
    for rows in ROWS:
        for temperature in (0.0, 0.6):
            _choose(table, rows, temperature)
        for model, shapes in MODELS.items():
            weight, hidden = random(VOCABULARY, shapes.hidden), random(rows, shapes.hidden)
            head = partial(functional.linear, hidden, weight)
            work = Work(weight.nbytes, 2 * rows * weight.numel())
            table.add("head", f"{model} {rows} rows", "cuBLAS", one(head), work=work)


def _choose(table: Table, rows: int, temperature: float) -> None:
    logits = random(rows, VOCABULARY) * 3
    seeds = torch.arange(rows, device=DEVICE)
    positions = torch.full((rows,), 700, dtype=torch.int32, device=DEVICE)
    row_sampling = RowSampling(
        temperature=torch.full((rows,), temperature, device=DEVICE),
        seeds=seeds,
        positions=positions,
        min_position=torch.zeros_like(positions),
        stop_ids=torch.full((rows, 4), -1, dtype=torch.int32, device=DEVICE),
    )
    slots = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    chosen = ChosenTokens(slots.clone(), slots.clone(), slots, slots.long())
    keys = noise_keys(seeds, positions)
    plan = SamplingPlan(
        num_rows=rows,
        plain=NoisyRows(None, row_sampling.temperature.unsqueeze(1), keys),
        filtered=None,
        banned=None,
        allowed=None,
    )
    sampler = Sampler(part=VocabularyPart(0, VOCABULARY, NUM_TOKENIZER_IDS), group=SingleRank())

    def ours() -> None:
        best = best_of_chunks(logits, row_sampling, first_id=0, num_tokenizer_ids=NUM_TOKENIZER_IDS)
        finish(best, chosen)

    def share_of_other_tokens(_: Sequence[Launch]) -> float:
        return float((sampler.sample(logits, plan).tokens != chosen.tokens).double().mean())

    shape, work = f"{rows} rows, temperature {temperature}", Work(num_bytes=logits.nbytes)
    table.add("sampling", shape, "ours", one(ours), work=work, error=share_of_other_tokens)
    table.add("sampling", shape, "torch", one(partial(sampler.sample, logits, plan)), work=work)


def inputs(table: Table, _: Sequence[int]) -> None:
    for rows in ROWS:
        num_words = DecodeColumns.num_words(rows, num_stop_ids=4)
        packed = torch.zeros(num_words, dtype=torch.int32, device=DEVICE)
        columns = DecodeColumns.of(packed, num_rows=rows, num_stop_ids=4)
        columns.clear()
        columns.slots.copy_(torch.from_numpy(np.arange(rows, dtype=np.int32)))
        columns.positions.fill_(4000)
        launch = partial(
            prepare_decode,
            columns,
            DecodeInputs.allocate(rows, num_blocks=2560, device=DEVICE),
            last_tokens=torch.zeros(rows, dtype=torch.int64, device=DEVICE),
            tables=torch.ones(rows, 2560, dtype=torch.int32, device=DEVICE),
            block_size=16,
        )
        work = Work(num_bytes=rows * 251 * 8)
        table.add("inputs", f"{rows} rows at 4000, block 16", "ours", one(launch), work=work)


PARTS: dict[str, Callable[[Table, Sequence[int]], None]] = {
    "layer": layer,
    "sampling": sampling,
    "inputs": inputs,
    "decode": kernel_attention.decode,
    "prefill": kernel_attention.prefill,
    "tune": kernel_attention.tune,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Times the GPU kernels.")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--block-sizes", default="16,64,256", help="of the KV cache")
    parser.add_argument("--json", type=Path, help="write all numbers to this file too")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    unknown = set(names) - set(PARTS)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))}: parts are {', '.join(PARTS)}")
    if not torch.cuda.is_available():
        parser.error("needs a CUDA device")
    table = Table(measure_ceilings())
    ceilings = table.ceilings
    print(
        f"{torch.cuda.get_device_name()}: copy {ceilings.bytes_per_s / 1e12:.2f} TB/s, "
        f"bf16 product {ceilings.flops_per_s / 1e12:.0f} TFLOP/s\n{HEAD}"
    )
    for name in names:
        try:
            PARTS[name](table, [int(size) for size in arguments.block_sizes.split(",")])
        except Exception as error:  # noqa: BLE001 the other parts go on
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
        torch.cuda.empty_cache()
        if arguments.json is not None:
            table.write(arguments.json)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
