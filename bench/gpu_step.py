"""Steps of a whole model on this GPU against their floors: decode, prefill, what lies between.

    python -m bench.gpu_step [--models 0.6B 8B] [--backends fa3 triton] [--json FILE] [--profile .]

Random weights of Qwen3's shapes in bfloat16, random keys and values. For each decode step: the
recorded program alone, then the runner as it serves (two steps in flight, packed copies, results),
the host's share of a launch, and the device's idle time between two steps; the last one once more
over a long run of the largest batch.
"""

import argparse
import gc
import json
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from bench.gpu_bench import (
    BLOCK_SIZE,
    MOST_ROWS,
    MOST_TOKENS,
    Bench,
    DecodeResult,
    GapResult,
    PrefillResult,
)
from bench.roofline import MODELS, Roofline

MOST_KV_BYTES = 64e9
Result = DecodeResult | PrefillResult | GapResult


def attempt(what: str, run: Callable[[], object]) -> None:
    """One failure must not end the others."""
    try:
        run()
    except Exception:  # noqa: BLE001 - printed; the next size may work
        print(f"FAILED {what}\n{traceback.format_exc()}", flush=True)


def bench_model(options: argparse.Namespace, model: str, backend: str, found: list[Result]) -> None:
    """All sizes of one model on one backend."""
    per_token = Roofline(MODELS[model]).kv_bytes_per_token
    sizes = [
        (rows, context)
        for context in options.contexts
        for rows in options.rows
        if rows * context * per_token <= MOST_KV_BYTES
    ]
    most_keys = max(rows * (context + BLOCK_SIZE) for rows, context in sizes)
    num_positions = max(*options.contexts, MOST_TOKENS) + BLOCK_SIZE
    bench = Bench(
        model,
        backend,
        num_keys=max(most_keys, (MOST_ROWS + 1) * 1040, 65 * 2064),
        num_positions=num_positions,
    )

    def show(run: Callable[[], Result]) -> None:
        line = run()
        found.append(line)
        print(line, flush=True)

    for what, run in lines_of(bench, sizes, options):
        attempt(what, partial(show, run))
    if options.profile is not None:
        for rows in (1, 256):
            path = options.profile / f"step-{model}-{backend}-{rows}.json"
            attempt(f"profile {rows}", partial(bench.profile, path, rows, 1024))


def lines_of(
    bench: Bench, sizes: Sequence[tuple[int, int]], options: argparse.Namespace
) -> Iterator[tuple[str, Callable[[], Result]]]:
    """What is to be measured, line by line, with a name for each."""
    for rows, context in sizes:
        yield f"decode {rows} x {context}", partial(bench.decode, rows, context)
    for rows in options.rows:
        run = partial(bench.decode, rows, options.contexts[0], has_filters=True)
        yield f"filters {rows}", run
    if options.gap_steps:
        # the most rows, of the shortest contexts: the host has the least time a row
        rows, context = max(sizes, key=lambda size: (size[0], -size[1]))
        yield "gaps", partial(bench.gaps, rows, context, options.gap_steps)
    for tokens in options.prefills:
        for rows in (0, 64):
            if rows + tokens <= MOST_TOKENS:
                yield f"prefill {tokens}", partial(bench.prefill, tokens, rows)


def main() -> None:
    """Runs everything that is asked for and prints as it goes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=["0.6B", "8B"])
    parser.add_argument("--backends", nargs="+", default=["fa3"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 64, 128, 256])
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--prefills", type=int, nargs="*", default=[16, 128, 512, 1024, 2048])
    parser.add_argument(
        "--gap-steps", type=int, default=1000, help="steps of the long run that shows idle times"
    )
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--profile", type=Path, help="write traces into this folder")
    options = parser.parse_args()
    found: list[Result] = []
    for model in options.models:
        for backend in options.backends:
            attempt(f"{model} {backend}", partial(bench_model, options, model, backend, found))
            gc.collect()
            torch.cuda.empty_cache()
    if options.json is not None:
        content = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "lines": [{"kind": type(line).__name__, **asdict(line)} for line in found],
        }
        options.json.write_text(json.dumps(content, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
