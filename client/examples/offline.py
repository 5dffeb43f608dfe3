"""Many prompts through a model on this machine, without a server: python offline.py [MODEL]

Needs `pip install 'octavo[all]'`. MODEL is a folder, a cached Hugging Face repository id, or
nothing for the small default model, which is fetched once.
"""

import sys

import octavo

PROMPTS = [
    "The capital of France is",
    "A printing press is",
    "1, 2, 3, 4,",
    "Dear Sir or Madam,",
]


def main() -> None:
    """Generates for all prompts at once, then answers a question."""
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct"
    params = octavo.SamplingParams(temperature=0.0, max_tokens=24)
    with octavo.Engine(model, max_num_seqs=16) as engine:
        for prompt, result in zip(PROMPTS, engine.generate(PROMPTS, params), strict=True):
            print(f"{prompt!r} -> {result.text!r} ({result.finish_reason})")

        (answer,) = engine.chat("What is the capital of France?", params)
        print(answer.text)

        # One by one, for programs with a loop of their own.
        for number in range(3):
            engine.add_request(f"{number} plus one is", params, request_id=f"sum-{number}")
        while engine.has_unfinished:
            for result in engine.step():
                print(f"{result.request_id}: {result.text!r}")


if __name__ == "__main__":
    main()
