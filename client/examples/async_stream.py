"""Several answers at once from a running service, with asyncio: python async_stream.py [TARGET]

Needs `pip install octavo`, and a service: `octavo serve`.
"""

import asyncio
import sys

import octavo

QUESTIONS = ["What is the capital of France?", "Name a colour.", "What is two plus two?"]


async def ask(client: octavo.AsyncClient, question: str) -> octavo.Generation:
    """Reads one stream to its end; a cancelled task cancels its generation on the service."""
    async with client.stream(messages=question, temperature=0.0, max_tokens=50) as stream:
        async for delta in stream:
            print(f"[{question}] {delta.text!r}")
        return await stream.result()


async def main() -> None:
    """Asks all questions at the same time."""
    target = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"
    async with octavo.AsyncClient(target) as client:
        results = await asyncio.gather(*(ask(client, question) for question in QUESTIONS))
    for question, result in zip(QUESTIONS, results, strict=True):
        print(f"{question} {result.text}")


if __name__ == "__main__":
    asyncio.run(main())
