"""What this frontend asked the core and has no answer to yet. Knows no socket and no question."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Numbered(Protocol):
    """A question or an answer; `call` tells which one belongs to which."""

    call: int


Q = TypeVar("Q", bound=Numbered)
A = TypeVar("A", bound=Numbered)


class OpenQuestions(Generic[Q, A]):
    """Questions of one kind; a new connection asks them again."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[asyncio.Future[A], Q]] = {}
        self._next_call = 1

    def ask(self, question: Q) -> asyncio.Future[A]:
        """Numbers the question; its answer. Whoever stops waiting for it withdraws it."""
        call = question.call = self._next_call
        self._next_call += 1
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._open[call] = (answer, question)
        answer.add_done_callback(lambda _: self._open.pop(call, None))
        return answer

    def unanswered(self) -> Iterator[Q]:
        """Questions to repeat."""
        return iter([question for _, question in self._open.values()])

    def answered(self, message: A) -> None:
        """The core looked."""
        answer, _ = self._open.get(message.call, (None, None))
        if answer is not None and not answer.done():
            answer.set_result(message)
