"""A core that does what a test says, on a real ROUTER. Knows no scheduling.

It keeps the numbers of each connection and sends life signs; everything else is the test's.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from octavo.internal.v1 import engine_pb2 as engine

WAIT_LIMIT_S = 60.0
LIFE_SIGN_S = 0.1


class ScriptedCore:
    """Binds engine.sock in a folder; `start` and `stop` it inside a running loop."""

    def __init__(self, run_dir: Path) -> None:
        self._endpoint = f"ipc://{run_dir}/engine.sock"
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._identity = b""
        self._num_sent = 0
        self._num_received = 0
        self._unread: asyncio.Queue[engine.FrontendToCore] = asyncio.Queue()
        self.gaps: list[int] = []
        self.num_hellos = 0
        self.num_beats = 0
        self.is_silent = False
        self.status = engine.CoreStatus(
            is_accepting=True, max_sequence_tokens=200, vocab_size=288, is_progressing=True
        )

    async def start(self) -> None:
        """Becomes a new core that knows nothing."""
        self.status.core_incarnation = secrets.randbits(63)
        self._identity = b""
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(self._endpoint)
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._live())]

    async def stop(self) -> None:
        """Dies; what it was sent and has not read is lost."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        while not self._unread.empty():
            self._unread.get_nowait()

    async def restart(self) -> None:
        """Dies, and a new incarnation takes its place."""
        await self.stop()
        await self.start()

    def close(self) -> None:
        """Lets go of the context."""
        self._context.term()

    # --- what came ---

    async def expect(self, kind: str) -> Any:
        """The next message, which has to be of this kind."""
        async with asyncio.timeout(WAIT_LIMIT_S):
            message = await self._unread.get()
        assert message.WhichOneof("kind") == kind, message
        return getattr(message, kind)

    async def expect_any(self) -> Any:
        """The next message, whichever it is."""
        async with asyncio.timeout(WAIT_LIMIT_S):
            message = await self._unread.get()
        return getattr(message, message.WhichOneof("kind") or "")

    async def expect_nothing(self, *, for_s: float = 0.3) -> None:
        """Nothing but life signs comes for a moment."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                raise AssertionError(f"unexpected: {await self._unread.get()}")

    # --- what is said ---

    async def send(self, message: engine.CoreToFrontend) -> None:
        """Sends with the next number."""
        assert self._socket is not None
        self._num_sent += 1
        message.message_number = self._num_sent
        await self._socket.send_multipart([self._identity, message.SerializeToString()])

    def lose_a_message(self) -> None:
        """The next message has a number too high."""
        self._num_sent += 1

    async def accept(self, submit: engine.Submit, *, max_tokens: int = 100) -> None:
        accepted = engine.Accepted(number=submit.number, max_tokens=max_tokens)
        await self.send(engine.CoreToFrontend(accepted=accepted))

    async def reject(
        self, number: int, reason: engine.RejectReason.ValueType, *, retry_after_ms: int = 0
    ) -> None:
        rejected = engine.Rejected(
            number=number, reason=reason, message="because", retry_after_ms=retry_after_ms
        )
        await self.send(engine.CoreToFrontend(rejected=rejected))

    async def attached(
        self,
        number: int,
        submit: engine.Submit,
        outputs: Sequence[engine.AttachedOutput],
        *,
        max_tokens: int = 100,
    ) -> None:
        """Hands a request over, as the core holds it: number 0, resume empty."""
        held = engine.Submit()
        held.CopyFrom(submit)
        held.number = 0
        del held.resume[:]
        message = engine.Attached(
            number=number,
            submit=held,
            outputs=outputs,
            max_tokens=max_tokens,
            num_cached_tokens=3,
        )
        await self.send(engine.CoreToFrontend(attached=message))

    async def deliver(
        self,
        number: int,
        tokens: Sequence[int] = (),
        *,
        first: int = 0,
        output: int = 0,
        end: engine.EndReason.ValueType | None = None,
        stop_token_id: int = -1,
        message: str = "",
        records: bytes = b"",
        prompt_records: Sequence[tuple[int, bytes]] = (),
    ) -> None:
        """Tokens of one output in one row, and its end behind them; what is told of them.

        `prompt_records` are (first position, records).
        """
        deliver = engine.Deliver(records=records)
        for first_position, told in prompt_records:
            deliver.prompt_records.add(number=number, first_position=first_position, records=told)
        if tokens:
            deliver.numbers = _column([number])
            deliver.output_indexes = _column([output])
            deliver.first_token_indexes = _column([first])
            deliver.token_counts = b"" if len(tokens) == 1 else _column([len(tokens)])
            deliver.tokens = _column(tokens)
            deliver.record_words = _column([len(records) // 4]) if records else b""
        if end is not None:
            deliver.ends.add(
                number=number,
                output_index=output,
                num_tokens=first + len(tokens),
                reason=end,
                stop_token_id=stop_token_id,
                message=message,
            )
        await self.send(engine.CoreToFrontend(deliver=deliver))

    async def started(self, number: int, *, num_cached_tokens: int) -> None:
        deliver = engine.Deliver(
            starts=[engine.RequestStart(number=number, num_cached_tokens=num_cached_tokens)]
        )
        await self.send(engine.CoreToFrontend(deliver=deliver))

    async def superseded(self, number: int) -> None:
        await self.send(engine.CoreToFrontend(superseded=engine.Superseded(number=number)))

    async def tell_status(self) -> None:
        """Says now what else the next life sign would."""
        await self.send(engine.CoreToFrontend(status=self.status))

    # --- inside ---

    async def _receive(self) -> None:
        assert self._socket is not None
        while True:
            identity, payload = await self._socket.recv_multipart()
            message = engine.FrontendToCore.FromString(payload)
            kind = message.WhichOneof("kind")
            if kind == "hello":
                self._identity, self._num_sent, self._num_received = identity, 0, 0
                self.num_hellos += 1
            elif identity != self._identity:
                continue
            self._num_received += 1
            if message.message_number != self._num_received:
                self.gaps.append(message.message_number)
            if kind == "hello" and not self.is_silent:
                await self.tell_status()
            elif kind == "beat":
                self.num_beats += 1
            elif kind != "hello":
                self._unread.put_nowait(message)

    async def _live(self) -> None:
        while True:
            await asyncio.sleep(LIFE_SIGN_S)
            if self._identity and not self.is_silent:
                with contextlib.suppress(zmq.ZMQError):
                    await self.tell_status()


def _column(values: Sequence[int]) -> bytes:
    return array("i", values).tobytes()


def output(
    tokens: Sequence[int] = (),
    *,
    end: engine.EndReason.ValueType | None = None,
    stop_token_id: int = -1,
) -> engine.AttachedOutput:
    """One output of an attached request."""
    made = engine.AttachedOutput(tokens=_column(tokens))
    if end is not None:
        made.end.MergeFrom(
            engine.OutputEnd(num_tokens=len(tokens), reason=end, stop_token_id=stop_token_id)
        )
    return made
