"""What to ask for: lists of requests made from a seed. Sends nothing.

A prompt is random token ids, so that no two requests share a beginning: what is measured is the
service without its prefix cache.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

_NANO_LENGTHS = (100, 1024)
_NANO_TEMPERATURE = 0.6


@dataclass(frozen=True, slots=True)
class Request:
    """One stream to ask for, `send_at` seconds after the load begins (open loop only)."""

    prompt: tuple[int, ...]
    num_tokens: int
    temperature: float = 0.0
    send_at: float = 0.0


def fixed(count: int, *, num_prompt: int, num_output: int, vocab: int, seed: int) -> list[Request]:
    """Requests of one shape, greedy."""
    draw = Random(seed)
    return [
        Request(prompt=_prompt(draw, num_prompt, vocab), num_tokens=num_output)
        for _ in range(count)
    ]


def nano(count: int, *, vocab: int, seed: int) -> list[Request]:
    """The bench that nano-vllm made known: lengths uniform 100 to 1,024, temperature 0.6."""
    draw = Random(seed)
    return [
        Request(
            prompt=_prompt(draw, draw.randint(*_NANO_LENGTHS), vocab),
            num_tokens=draw.randint(*_NANO_LENGTHS),
            temperature=_NANO_TEMPERATURE,
        )
        for _ in range(count)
    ]


def arriving(requests: Sequence[Request], *, rate: float, seed: int) -> list[Request]:
    """The same requests as a Poisson process: `rate` a second on average, from time 0 on."""
    draw, send_at, timed = Random(seed), 0.0, []
    for request in requests:
        timed.append(dataclasses.replace(request, send_at=send_at))
        send_at += draw.expovariate(rate)
    return timed


def _prompt(draw: Random, length: int, vocab: int) -> tuple[int, ...]:
    return tuple(draw.randrange(vocab) for _ in range(length))
