"""A streamed chat answer from a running service: python stream.py [TARGET] [QUESTION]

Needs `pip install octavo`, and a service: `octavo serve`.
"""

import sys

import octavo


def main() -> None:
    """Prints the answer while it is written, then what is known about it."""
    target = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"
    question = sys.argv[2] if len(sys.argv) > 2 else "What is the capital of France?"
    with octavo.Client(target) as client:
        print(f"{client.model_info().model} answers:")
        try:
            with client.stream(messages=question, max_tokens=200, timeout=120) as stream:
                for delta in stream:
                    print(delta.text, end="", flush=True)
        except octavo.InvalidRequest as error:
            sys.exit(f"refused: {error}")  # names every field that breaks a rule
        except octavo.ServiceError as error:
            sys.exit(f"{error.code}: {error}")
        result = stream.result()
        print(f"\n({result.finish_reason}, {result.usage.completion_tokens} tokens)")


if __name__ == "__main__":
    main()
