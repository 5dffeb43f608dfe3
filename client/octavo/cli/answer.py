"""Writes a stream's text to the terminal as it comes, and says how fast it came."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.results import FinishReason, Generation
from octavo.stream import Stream

_DIM, _PLAIN = "\033[2m", "\033[0m"
_ENDS = {
    FinishReason.LENGTH: "cut at the length limit",
    FinishReason.TIME_LIMIT: "cut at the time limit",
    FinishReason.CANCELLED: "cancelled",
    FinishReason.STOP_STRING: "at a stop text",
    FinishReason.STOP_TOKEN: "at a stop token",
}


@dataclass(slots=True)
class Stopwatch:
    """When tokens came; begun when it is made."""

    clock: Callable[[], float] = time.perf_counter
    begun_at: float = field(init=False)
    first_at: float | None = None
    last_at: float = 0.0
    num_first: int = 0
    num_tokens: int = 0

    def __post_init__(self) -> None:
        """Begins."""
        self.begun_at = self.clock()

    def note(self, num_tokens: int) -> None:
        """Counts tokens that came just now."""
        if num_tokens == 0:
            return
        self.last_at = self.clock()
        self.num_tokens += num_tokens
        if self.first_at is None:
            self.first_at, self.num_first = self.last_at, num_tokens

    def text(self) -> str:
        """Time to the first token, and the rate of those after it."""
        if self.first_at is None:
            return "no token came"
        parts = [f"first token after {self.first_at - self.begun_at:.2f} s"]
        elapsed_s = self.last_at - self.first_at
        if elapsed_s > 0:
            parts.append(f"{(self.num_tokens - self.num_first) / elapsed_s:.1f} tokens/s")
        parts.append(f"{self.num_tokens} tokens" if self.num_tokens != 1 else "1 token")
        return ", ".join(parts)


def print_answer(stream: Stream, *, watch: Stopwatch) -> Generation:
    """Writes the first output as it comes; returns the whole when it has ended.

    Its text goes to stdout, its reasoning beside it, to stderr.
    """
    is_reasoning = False
    with stream:
        for delta in stream:
            watch.note(len(delta.token_ids))
            if delta.index:
                continue
            if delta.reasoning:
                is_reasoning = True
                write_aside(delta.reasoning)
            if delta.text:
                if is_reasoning:
                    write_aside("\n")
                    is_reasoning = False
                sys.stdout.write(delta.text)
                sys.stdout.flush()
    generation = stream.partial()
    sys.stdout.write("\n")
    sys.stdout.flush()
    return generation


def print_facts(generation: Generation, *, watch: Stopwatch, is_greedy: bool = False) -> None:
    """Writes speed, seed (without effect if greedy), end and the service's warnings to stderr."""
    parts = [watch.text()]
    if generation.seed is not None and not is_greedy:
        parts.append(f"seed {generation.seed}")
    if generation.finish_reason in _ENDS:
        parts.append(_ENDS[generation.finish_reason])
    note(f"[{', '.join(parts)}]")
    finish = generation.outputs[0].finish if generation.outputs else None
    if finish is not None and finish.reason is FinishReason.ERROR:
        note(f"the answer broke off: {finish.message}")
    for warning in generation.start.warnings if generation.start else ():
        note(f"note: {warning}")


def note(text: str) -> None:
    """Writes a line beside the answer, to stderr; dim on a terminal."""
    write_aside(f"{text}\n")


def write_aside(text: str) -> None:
    """Writes beside the answer, to stderr; dim on a terminal."""
    is_terminal = sys.stderr.isatty()
    sys.stderr.write(f"{_DIM}{text}{_PLAIN}" if is_terminal else text)
    sys.stderr.flush()
