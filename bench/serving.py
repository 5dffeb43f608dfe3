"""Streams through real gRPC: closed loops, nano-vllm's bench, Poisson arrivals.

Clients run in processes of their own, the service in its own, and the peer, transformers'
`generate`, in another, with the same number of threads; rounds alternate, and medians are quoted,
since shared machines are noisy. The load is that of `octavo bench`, which measures once and draws.

    python -m bench.serving                       # the embedded model on this machine's CPU
    python -m bench.serving --target HOST:PORT    # a running service
    python -m bench.serving --target HOST:PORT --workload nano
    python -m bench.serving --target HOST:PORT --workload poisson --rate 16 --count 400
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.generate_peer import Peer
from octavo.bench.outcome import Outcome
from octavo.bench.sender import ALL_AT_THEIR_TIMES, Access, send
from octavo.bench.summary import summarize
from octavo.bench.workload import Request, arriving, fixed, nano
from octavo.models.resolve import resolve_model
from octavo.spawn import LocalService

_START_LIMIT_S = 180.0
_PEER_BATCHES = (1, 8)


@dataclass(frozen=True, slots=True)
class Measured:
    """A load's numbers."""

    ttft_p50_s: float
    ttft_p95_s: float
    ttft_p99_s: float
    itl_p50_s: float
    itl_p95_s: float
    itl_p99_s: float
    tokens_per_s: float
    num_tokens: int


def requests_of(options: argparse.Namespace, name: str, seed: int) -> list[Request]:
    """The requests of a round; a closed load's name is its number of clients."""
    if options.workload == "nano":
        return nano(options.count, vocab=options.vocab_size, seed=seed)
    if options.workload == "poisson":
        requests = nano(options.count, vocab=options.vocab_size, seed=seed)
        return arriving(requests, rate=options.rate, seed=seed)
    return fixed(
        int(name),
        num_prompt=options.prompt_tokens,
        num_output=options.output_tokens,
        vocab=options.vocab_size,
        seed=seed,
    )


def load_names(options: argparse.Namespace) -> list[str]:
    """The loads of one run."""
    if options.workload == "nano":
        return [f"nano, {options.count} requests"]
    if options.workload == "poisson":
        return [f"poisson, {options.rate:g}/s, {options.count} requests"]
    return [str(clients) for clients in options.clients]


def measure(options: argparse.Namespace, target: str, peer: Peer | None) -> dict[str, object]:
    """Alternates the service's loads and the peer; medians over the measured rounds."""
    by_load: dict[str, list[Measured]] = {name: [] for name in load_names(options)}
    by_batch: dict[int, list[float]] = {batch: [] for batch in _PEER_BATCHES if peer is not None}
    for turn in range(options.rounds + options.warm_up_rounds):
        for name, rounds in by_load.items():
            requests = requests_of(options, name, turn)
            measured = measured_load(target, requests, num_processes=options.processes)
            if turn >= options.warm_up_rounds:
                rounds.append(measured)
        for batch, speeds in by_batch.items():
            assert peer is not None
            speed = peer.tokens_per_s(
                batch,
                num_prompt=options.prompt_tokens,
                num_output=options.output_tokens,
                vocab=options.vocab_size,
                seed=turn,
            )
            if turn >= options.warm_up_rounds:
                speeds.append(speed)
    return {
        "threads": options.threads,
        "dtype": options.dtype,
        "prompt_tokens": options.prompt_tokens,
        "output_tokens": options.output_tokens,
        "service": {name: asdict(median_of(rounds)) for name, rounds in by_load.items()},
        "generate_tokens_per_s": {
            str(batch): statistics.median(speeds) for batch, speeds in by_batch.items()
        },
    }


def measured_load(target: str, requests: Sequence[Request], *, num_processes: int) -> Measured:
    """One load's numbers; a stream that fails or ends early fails the whole."""
    outcomes = send(
        Access(target=target),
        requests,
        num_clients=ALL_AT_THEIR_TIMES,
        num_processes=num_processes,
    )
    return measured_of(outcomes)


def measured_of(outcomes: Sequence[Outcome]) -> Measured:
    """The numbers of streams that all came whole; raises RuntimeError otherwise."""
    found = summarize(outcomes)
    if found.errors:
        raise RuntimeError(f"streams failed: {dict(found.errors)}")
    return Measured(
        ttft_p50_s=found.ttft_s.p50,
        ttft_p95_s=found.ttft_s.p95,
        ttft_p99_s=found.ttft_s.p99,
        itl_p50_s=found.itl_s.p50,
        itl_p95_s=found.itl_s.p95,
        itl_p99_s=found.itl_s.p99,
        tokens_per_s=found.output_tokens_per_s,
        num_tokens=found.num_output_tokens,
    )


def median_of(rounds: list[Measured]) -> Measured:
    """Each number's median over rounds."""
    names = Measured.__dataclass_fields__
    return Measured(**{n: statistics.median(getattr(r, n) for r in rounds) for n in names})


def table(result: dict[str, object]) -> str:
    """The result for people."""
    service, peers = result["service"], result["generate_tokens_per_s"]
    assert isinstance(service, dict)
    assert isinstance(peers, dict)
    base = peers.get("1")
    head = "TTFT p50/p95/p99 ms", "inter-token p50/p95/p99 ms", "tokens/s", "x generate(1)"
    lines = [f"{'streams':<28} {head[0]:>24} {head[1]:>27} {head[2]:>9} {head[3]:>14}"]
    for name, m in service.items():
        ttft = " / ".join(f"{1e3 * m[f'ttft_p{p}_s']:.1f}" for p in (50, 95, 99))
        itl = " / ".join(f"{1e3 * m[f'itl_p{p}_s']:.2f}" for p in (50, 95, 99))
        ratio = f"{m['tokens_per_s'] / base:.2f}" if base else "-"
        lines.append(f"{name:<28} {ttft:>24} {itl:>27} {m['tokens_per_s']:>9.1f} {ratio:>14}")
    lines += [f"generate, batch {batch}: {speed:.1f} tokens/s" for batch, speed in peers.items()]
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """The command line."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m-instruct", help="model to serve")
    parser.add_argument("--target", default="", help="a running service instead of an own one")
    parser.add_argument("--workload", choices=["closed", "nano", "poisson"], default="closed")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32], help="closed")
    parser.add_argument("--prompt-tokens", type=int, default=64, help="closed")
    parser.add_argument("--output-tokens", type=int, default=64, help="closed")
    parser.add_argument("--count", type=int, default=256, help="requests of nano and poisson")
    parser.add_argument("--rate", type=float, default=16.0, help="requests a second of poisson")
    parser.add_argument("--vocab-size", type=int, default=0, help="0: the model's")
    parser.add_argument("--rounds", type=int, default=3, help="medians over this many")
    parser.add_argument("--warm-up-rounds", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="client processes")
    parser.add_argument("--threads", type=int, default=cores, help="of service and generate")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--no-generate", action="store_true", help="leave transformers out")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    return parser.parse_args()


def measure_own_service(options: argparse.Namespace) -> dict[str, object]:
    """Starts the model's service, and the peer, for the time of the measurement."""
    model = resolve_model(options.model).path
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    options.vocab_size = options.vocab_size or config["vocab_size"]
    flags = ["--model", str(model), "--cpu-threads", str(options.threads)]
    service = LocalService([*flags, "--dtype", options.dtype])
    service.start(limit_s=_START_LIMIT_S)
    peer = None if options.no_generate else Peer(model, options.threads, options.dtype)
    try:
        return measure(options, service.target, peer)
    finally:
        service.stop()
        if peer is not None:
            peer.close()


def main() -> int:
    """Runs the benchmark and prints its table."""
    options = parse()
    if options.target and not options.vocab_size:
        sys.stderr.write("--target needs --vocab-size\n")
        return 2
    if options.target:
        result = measure(options, options.target, None)
    else:
        result = measure_own_service(options)
    print(table(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
