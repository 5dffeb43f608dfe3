"""How long an idle service takes to the first token: one client, one stream after the other.

python -m bench.first_token --target HOST:PORT [--count 50] [--prompt-tokens 128]

Also says how long the rest of each stream took, for each token.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from random import Random

import grpc

from octavo.bench.summary import percentile
from octavo.v1 import inference_pb2 as api
from octavo.v1.inference_pb2_grpc import InferenceServiceStub

_PAUSE_S = 0.05
_CALL_LIMIT_S = 60.0


def one_stream(
    stub: InferenceServiceStub, prompt: list[int], num_tokens: int
) -> tuple[float, float]:
    """Seconds to the first token, and for each later one."""
    request = api.GenerateRequest(
        generation=api.Generation(
            prompt=api.Prompt(token_ids=api.TokenIds(ids=prompt)),
            sampling=api.SamplingParams(temperature=0),
            stopping=api.StoppingParams(max_tokens=num_tokens, ignore_eos=True),
        )
    )
    sent_at = time.perf_counter()
    first = last = 0.0
    for response in stub.Generate(request, timeout=_CALL_LIMIT_S):
        if sum(len(delta.token_ids) for delta in response.chunk.outputs):
            last = time.perf_counter()
            first = first or last
    return first - sent_at, (last - first) / max(1, num_tokens - 1)


def main() -> None:
    """Prints one line, and writes the numbers with --json."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--vocab-size", type=int, default=256)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    draw = Random(0)
    found = []
    with grpc.insecure_channel(options.target) as channel:
        stub = InferenceServiceStub(channel)
        for _ in range(options.count + 1):
            prompt = [draw.randrange(options.vocab_size) for _ in range(options.prompt_tokens)]
            found.append(one_stream(stub, prompt, options.output_tokens))
            time.sleep(_PAUSE_S)
    found = found[1:]  # the first opened the connection
    firsts = sorted(1e3 * first for first, _ in found)
    rest = statistics.median(1e3 * each for _, each in found)
    print(
        f"idle, {options.prompt_tokens} tokens: TTFT p50 {percentile(firsts, 0.5):.2f}"
        f" p95 {percentile(firsts, 0.95):.2f} ms, then {rest:.3f} ms a token"
    )
    if options.json:
        options.json.write_text(json.dumps({"ttft_ms": firsts, "token_ms": rest}, indent=1))


if __name__ == "__main__":
    main()
