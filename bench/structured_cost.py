"""What structured output costs: the time of a step whose eight streams have a form, or none.

python bench/structured_cost.py TARGET [--rounds N] [--json FILE]

Rounds of all kinds alternate against a running service, and their medians are compared: what the
machine does meanwhile hits them alike. A round's step time is the median time between two tokens of
its streams, the first ones left out.
"""

import argparse
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import octavo

NUM_STREAMS, NUM_FIRST = 8, 6
PROMPT = "A list of people and what they do, as JSON:\n"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMS = {
    "free": None,
    "json": octavo.StructuredOutput(
        json_schema={"type": "array", "items": PERSON, "minItems": 1000}
    ),
    "regex": octavo.StructuredOutput(regex=r"([A-Z][a-z]{2,9} [a-z]{2,12}[,.]\s){1000}"),
}


def gaps(client: octavo.Client, kind: str, seed: int, num_tokens: int) -> list[float]:
    """Seconds between the tokens of one stream."""
    form = FORMS[kind]
    stream = client.stream(
        PROMPT,
        max_tokens=num_tokens,
        temperature=0.8,
        seed=seed,
        ignore_eos=form is None,
        structured_output=form,
    )
    times = [time.perf_counter() for delta in stream for _ in delta.token_ids]
    assert len(times) == num_tokens, f"{kind} ended after {len(times)} tokens"
    return [after - before for before, after in pairwise(times)][NUM_FIRST:]


def round_of(client: octavo.Client, kind: str, num_tokens: int) -> float:
    """Seconds of a step: the median of what eight streams at once see."""
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        found = pool.map(lambda seed: gaps(client, kind, seed, num_tokens), range(NUM_STREAMS))
        return statistics.median(gap for stream in found for gap in stream)


def main() -> None:
    """Measures and writes a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", help="a running service")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=64, help="of each stream")
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    options = parser.parse_args()
    found: dict[str, list[float]] = {kind: [] for kind in FORMS}
    with octavo.Client(options.target, timeout=600) as client:
        for kind in FORMS:
            round_of(client, kind, options.tokens)
        for _ in range(options.rounds):
            for kind, rounds in found.items():
                rounds.append(round_of(client, kind, options.tokens))
    medians = {kind: statistics.median(rounds) for kind, rounds in found.items()}
    for kind, median in medians.items():
        ratios = [a / b for a, b in zip(found[kind], found["free"], strict=True)]
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        print(
            f"{kind:6} step {1000 * median:8.3f} ms   x {median / medians['free']:.3f}"
            f"   pairs: median {statistics.median(ratios):.3f}, {spread}"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
