"""Streams through real gRPC at several numbers of clients, beside transformers' generate.

Clients run in a process of their own, the service in its own processes, `generate` in a third, all
with the same number of threads; rounds alternate, and medians are quoted, since shared machines are
noisy.

    python bench/serving.py                      # the embedded model on this machine's CPU
    python bench/serving.py --target HOST:PORT   # a running service, without the comparison
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import grpc.aio

from octavo.models.resolve import resolve_model
from octavo.spawn import LocalService
from octavo.v1 import inference_pb2 as api
from octavo.v1.inference_pb2_grpc import InferenceServiceStub

if TYPE_CHECKING:
    from octavo.v1.inference_pb2_grpc import InferenceServiceAsyncStub

_START_LIMIT_S = 180.0


@dataclass(frozen=True, slots=True)
class Load:
    """What each client sends."""

    num_prompt_tokens: int
    num_output_tokens: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One round: seconds, and tokens a second over all clients."""

    ttft_p50_s: float
    ttft_p99_s: float
    itl_p50_s: float
    itl_p99_s: float
    tokens_per_s: float


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie, by the nearest rank."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, round(share * (len(ranked) - 1)))]


async def one_stream(
    stub: InferenceServiceAsyncStub, load: Load, draw: Random
) -> tuple[float, list[float], int]:
    """Seconds to the first token, seconds between later messages, number of tokens."""
    ids = [draw.randrange(load.vocab_size) for _ in range(load.num_prompt_tokens)]
    request = api.GenerateRequest(
        generation=api.Generation(
            prompt=api.Prompt(token_ids=api.TokenIds(ids=ids)),
            sampling=api.SamplingParams(temperature=0),
            stopping=api.StoppingParams(max_tokens=load.num_output_tokens, ignore_eos=True),
        )
    )
    sent_at = last = time.perf_counter()
    first, gaps, num_tokens = 0.0, [], 0
    async for response in stub.Generate(request):
        now = time.perf_counter()
        got = sum(len(delta.token_ids) for delta in response.chunk.outputs)
        if not got:
            continue
        if num_tokens:
            gaps.append(now - last)  # between messages, the stricter reading
        else:
            first = now - sent_at
        last, num_tokens = now, num_tokens + got
    return first, gaps, num_tokens


async def _round(target: str, num_clients: int, load: Load, seed: int) -> Measured:
    draw = Random(seed)
    async with grpc.aio.insecure_channel(target) as channel:
        stub = InferenceServiceStub(channel)
        began = time.perf_counter()
        done = await asyncio.gather(
            *(one_stream(stub, load, Random(draw.random())) for _ in range(num_clients))
        )
        took = time.perf_counter() - began
    firsts = [first for first, _, _ in done]
    gaps = [gap for _, gaps, _ in done for gap in gaps]
    return Measured(
        ttft_p50_s=percentile(firsts, 0.5),
        ttft_p99_s=percentile(firsts, 0.99),
        itl_p50_s=percentile(gaps, 0.5),
        itl_p99_s=percentile(gaps, 0.99),
        tokens_per_s=sum(count for _, _, count in done) / took,
    )


def run_round(target: str, num_clients: int, load: Load, seed: int) -> Measured:
    """One round of closed-loop clients, in this process."""
    return asyncio.run(_round(target, num_clients, load, seed))


class Generate:
    """transformers' generate in a process of its own; answers tokens a second."""

    def __init__(self, model: Path, threads: int, dtype: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--generate-server", str(model), str(threads), dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tokens_per_s(self, batch: int, load: Load, seed: int) -> float:
        """Decodes a batch of random prompts greedily."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([batch, seed, asdict(load)]) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        self._process.terminate()
        self._process.wait()


def serve_generate(model: str, threads: int, dtype: str) -> None:
    """The other end of `Generate`."""
    import torch  # noqa: PLC0415 - only this process needs it
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - likewise

    torch.set_num_threads(threads)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    for line in sys.stdin:
        batch, seed, fields = json.loads(line)
        load = Load(**fields)
        draw = torch.Generator().manual_seed(seed)
        shape = (batch, load.num_prompt_tokens)
        ids = torch.randint(load.vocab_size, shape, generator=draw)
        began = time.perf_counter()
        with torch.inference_mode():
            out = network.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=load.num_output_tokens,
                max_new_tokens=load.num_output_tokens,
                pad_token_id=0,
            )
        took = time.perf_counter() - began
        sys.stdout.write(f"{(out.shape[1] - ids.shape[1]) * batch / took}\n")
        sys.stdout.flush()


def median_of(rounds: list[Measured]) -> Measured:
    """Each number's median over rounds."""
    names = Measured.__dataclass_fields__
    return Measured(**{n: statistics.median(getattr(r, n) for r in rounds) for n in names})


def measure(
    options: argparse.Namespace, target: str, generate: Generate | None
) -> dict[str, object]:
    """Alternates service and generate; returns medians by number of clients."""
    load = Load(options.prompt_tokens, options.output_tokens, options.vocab_size)
    rounds: dict[int, list[Measured]] = {clients: [] for clients in options.clients}
    peers: dict[int, list[float]] = {1: [], 8: []}
    with get_context("spawn").Pool(1) as pool:
        pool.apply(run_round, (target, 1, load, 0))  # warm-up
        for turn in range(1, options.rounds + 1):
            for clients, measured in rounds.items():
                measured.append(pool.apply(run_round, (target, clients, load, turn)))
            for batch, speeds in peers.items():
                if generate is not None:
                    speeds.append(generate.tokens_per_s(batch, load, turn))
    return {
        "load": asdict(load),
        "threads": options.threads,
        "dtype": options.dtype,
        "service": {str(c): asdict(median_of(done)) for c, done in rounds.items()},
        "generate_tokens_per_s": {
            str(batch): statistics.median(speeds) for batch, speeds in peers.items() if speeds
        },
    }


def table(result: dict[str, object]) -> str:
    """The result for people."""
    service, peers = result["service"], result["generate_tokens_per_s"]
    assert isinstance(service, dict)
    assert isinstance(peers, dict)
    base = peers.get("1")
    lines = ["clients   TTFT p50/p99 ms   inter-token p50/p99 ms   tokens/s   x generate(1)"]
    for clients, m in service.items():
        ratio = f"{m['tokens_per_s'] / base:.2f}" if base else "-"
        lines.append(
            f"{clients:>7} {1e3 * m['ttft_p50_s']:>9.0f} /{1e3 * m['ttft_p99_s']:>6.0f}"
            f" {1e3 * m['itl_p50_s']:>15.1f} /{1e3 * m['itl_p99_s']:>7.1f}"
            f" {m['tokens_per_s']:>10.1f} {ratio:>15}"
        )
    lines += [f"generate, batch {batch}: {speed:.1f} tokens/s" for batch, speed in peers.items()]
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """The command line."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct", help="model to serve")
    parser.add_argument("--target", default="", help="a running service instead of an own one")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--vocab-size", type=int, default=0, help="0: the model's")
    parser.add_argument("--rounds", type=int, default=3, help="medians over this many")
    parser.add_argument("--threads", type=int, default=cores, help="of service and generate")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--no-generate", action="store_true", help="leave transformers out")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    return parser.parse_args()


def main() -> None:
    """Runs the benchmark and prints its table."""
    if sys.argv[1:2] == ["--generate-server"]:
        serve_generate(sys.argv[2], int(sys.argv[3]), sys.argv[4])
        return
    options = parse()
    if options.target:
        result = measure(options, options.target, None)
    else:
        model = resolve_model(options.model).path
        options.vocab_size = (
            options.vocab_size
            or json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"]
        )
        generate = None if options.no_generate else Generate(model, options.threads, options.dtype)
        service = LocalService(
            [
                *("--model", str(model), "--cpu-threads", str(options.threads)),
                *("--dtype", options.dtype),
            ]
        )
        service.start(limit_s=_START_LIMIT_S)
        try:
            result = measure(options, service.target, generate)
        finally:
            service.stop()
            if generate is not None:
                generate.close()
    print(table(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
