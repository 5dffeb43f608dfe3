"""Requests to be ended by name, until the core has said what it found. Knows no socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from octavo.internal.v1 import engine_pb2 as engine


class Cancels:
    """What was asked and not answered; a new connection asks again."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[asyncio.Future[engine.CancelAnswer], engine.CancelByName]] = {}
        self._next_call = 1

    def ask(
        self, *, tenant: str, request_id: str
    ) -> tuple[engine.CancelByName, asyncio.Future[engine.CancelAnswer]]:
        """The order to send, and its answer; whoever stops waiting for it withdraws it."""
        order = engine.CancelByName(call=self._next_call, tenant=tenant, request_id=request_id)
        self._next_call += 1
        answer: asyncio.Future[engine.CancelAnswer] = asyncio.get_running_loop().create_future()
        self._open[order.call] = (answer, order)
        answer.add_done_callback(lambda _: self._open.pop(order.call, None))
        return order, answer

    def unanswered(self) -> Iterator[engine.CancelByName]:
        """Orders to repeat."""
        return iter([order for _, order in self._open.values()])

    def answered(self, message: engine.CancelAnswer) -> None:
        """The core looked."""
        answer, _ = self._open.get(message.call, (None, None))
        if answer is not None and not answer.done():
            answer.set_result(message)
