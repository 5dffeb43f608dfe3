"""Every call of the API, with the Python client: python calls.py [TARGET] [CALL]

Needs `pip install octavo`, and a service: `octavo serve`.
"""

import sys
from collections.abc import Callable

import octavo


def generate(client: octavo.Client) -> None:
    """Generate."""
    question = "What is the capital of France?"
    stream = client.stream(messages=question, request_id="capital-2", max_tokens=50, keep_for_s=60)
    for delta in stream:
        print(delta.text, end="", flush=True)


def generate_unary(client: octavo.Client) -> None:
    """GenerateUnary: the client reads a stream inside, so that it can go on when that breaks."""
    print(client.generate("1, 2, 3,", temperature=0, max_tokens=8).text)


def attach(client: octavo.Client) -> None:
    """Attach."""
    for delta in client.attach("capital-2", from_tokens=[2]):
        print(delta.text, end="", flush=True)


def cancel(client: octavo.Client) -> None:
    """Cancel."""
    print(client.cancel("capital-2"))


def tokenize(client: octavo.Client) -> None:
    """Tokenize."""
    print(client.tokenize("Hello, world").token_ids)


def detokenize(client: octavo.Client) -> None:
    """Detokenize."""
    print(client.detokenize([39, 68, 75, 75, 78]))


def estimate(client: octavo.Client) -> None:
    """Estimate."""
    print(client.estimate("Hello, world").num_requests_ahead)


def get_model_info(client: octavo.Client) -> None:
    """GetModelInfo."""
    print(client.model_info().max_sequence_tokens)


def generate_batch(client: octavo.Client) -> None:
    """GenerateBatch."""
    for answer in client.generate_batch(["Red, green,", "One, two,"], max_tokens=8):
        print(answer.index, answer.result().text)


def embed(client: octavo.Client) -> None:
    """Embed."""
    for vector in client.embed(["a printing press", "a sheet of paper"]).vectors:
        print(len(vector), vector[:3])


def score(client: octavo.Client) -> None:
    """Score."""
    for found in client.score("The sky is", [" blue", " loud"]).scores:
        print(found.logprob, found.is_greedy)


CALLS: dict[str, Callable[[octavo.Client], None]] = {
    "Generate": generate,
    "GenerateUnary": generate_unary,
    "Attach": attach,
    "Cancel": cancel,
    "Tokenize": tokenize,
    "Detokenize": detokenize,
    "Estimate": estimate,
    "GetModelInfo": get_model_info,
    "GenerateBatch": generate_batch,
    "Embed": embed,
    "Score": score,
}


def main() -> None:
    """Makes all calls, or the one that is named."""
    target = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"
    with octavo.Client(target) as client:
        for name in sys.argv[2:] or CALLS:
            print(f"# {name}")
            CALLS[name](client)
            print()


if __name__ == "__main__":
    main()
