"""Which streams of a Poisson load waited long for their first token, and when they were sent.

python -m bench.slow_streams --target HOST:PORT [--rate 16] [--count 300] [--slow-ms 30]
"""

import argparse

from octavo.bench.sender import Access, send
from octavo.bench.summary import percentile
from octavo.bench.workload import arriving, nano

_NUM_PROCESSES = 8


def main() -> None:
    """Prints percentiles and the slow ones in order of sending."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--rate", type=float, default=16.0)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--vocab-size", type=int, default=256)
    parser.add_argument("--slow-ms", type=float, default=30.0)
    options = parser.parse_args()
    shapes = nano(options.count, vocab=options.vocab_size, seed=5)
    requests = arriving(shapes, rate=options.rate, seed=5)
    outcomes = send(Access(target=options.target), requests, num_processes=_NUM_PROCESSES)
    if failures := {stream.error for stream in outcomes if stream.error}:
        raise RuntimeError(f"streams failed: {failures}")
    firsts = sorted(1e3 * stream.ttft_s for stream in outcomes)
    numbers = [f"p{share} {percentile(firsts, share / 100):.1f}" for share in (50, 95, 99)]
    print(f"poisson {options.rate:g}/s: TTFT {', '.join(numbers)} ms; slow ones:")
    for stream in sorted(outcomes, key=lambda stream: stream.due_at):
        ttft_ms = 1e3 * stream.ttft_s
        if ttft_ms > options.slow_ms:
            print(f"  at {stream.due_at:7.3f} s, {stream.num_prompt:4} tokens: {ttft_ms:7.1f} ms")
    gaps = sorted(1e3 * gap for stream in outcomes for gap in stream.gaps_s)
    num_long = sum(gap > 50 for gap in gaps)
    print(f"gaps over 50 ms: {num_long} of {len(gaps)}, the longest {gaps[-1]:.0f} ms")


if __name__ == "__main__":
    main()
