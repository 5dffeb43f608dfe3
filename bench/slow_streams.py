"""Which streams of a Poisson load waited long for their first token, and when they were sent.

python -m bench.slow_streams --target HOST:PORT [--rate 16] [--count 300] [--slow-ms 30]
"""

import argparse
import time
from collections.abc import Sequence
from multiprocessing import get_context

from bench import load

_NUM_PROCESSES = 8


def _share(target: str, requests: Sequence[load.Request], start_at: float) -> list[load.Stream]:
    return load._send_share(target, requests, start_at)  # noqa: SLF001 - the same load, told apart


def main() -> None:
    """Prints percentiles and the slow ones in order of sending."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--rate", type=float, default=16.0)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--vocab-size", type=int, default=256)
    parser.add_argument("--slow-ms", type=float, default=30.0)
    options = parser.parse_args()
    requests = load.poisson(options.count, rate=options.rate, vocab=options.vocab_size, seed=5)
    shares = [requests[index::_NUM_PROCESSES] for index in range(_NUM_PROCESSES)]
    with get_context("spawn").Pool(_NUM_PROCESSES) as pool:
        pool.map(load._warm, [options.target] * _NUM_PROCESSES)  # noqa: SLF001 - as above
        start_at = time.monotonic() + 1.0
        jobs = [pool.apply_async(_share, (options.target, part, start_at)) for part in shares]
        pairs = [
            pair
            for part, job in zip(shares, jobs, strict=True)
            for pair in zip(part, job.get(), strict=True)
        ]
    firsts = sorted(1e3 * stream.ttft_s for _, stream in pairs)
    numbers = [f"p{share} {load.percentile(firsts, share / 100):.1f}" for share in (50, 95, 99)]
    print(f"poisson {options.rate:g}/s: TTFT {', '.join(numbers)} ms; slow ones:")
    for request, stream in sorted(pairs, key=lambda pair: pair[0].send_at):
        ttft_ms, length = 1e3 * stream.ttft_s, len(request.prompt)
        if ttft_ms > options.slow_ms:
            print(f"  at {request.send_at:7.3f} s, {length:4} tokens: {ttft_ms:7.1f} ms")
    gaps = sorted(1e3 * gap for _, stream in pairs for gap in stream.gaps_s)
    num_long = sum(gap > 50 for gap in gaps)
    print(f"gaps over 50 ms: {num_long} of {len(gaps)}, the longest {gaps[-1]:.0f} ms")


if __name__ == "__main__":
    main()
