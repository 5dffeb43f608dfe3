"""Requests that want no text: a vector, or how likely a prompt's tokens are. One question each.

They wait in the core's queue like generations, live through restarts of core and workers as these
do, and end with the call that asked. Knows no gRPC and no parsing.
"""

from __future__ import annotations

import asyncio
import uuid
from array import array
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.frontend.errors import (
    CallError,
    DeadlinePassed,
    GenerationFailed,
    Overloaded,
    Unavailable,
)
from scheduler_svc.frontend.ledger import RequestLedger
from scheduler_svc.frontend.record import RequestRecord
from scheduler_svc.frontend.traffic import Traffic
from scheduler_svc.security.key_records import Caller

MAX_AT_ONCE = 64
_RETRY_AFTER_MS = 1000
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who asks, and how the questions are queued."""

    caller: Caller
    deadline_at: float | None
    priority: int = 0
    skip_cache_read: bool = False
    skip_cache_store: bool = False

    @property
    def at_once(self) -> int:
        """Questions that may be open together."""
        most = self.caller.max_requests
        return min(MAX_AT_ONCE, most) if most else MAX_AT_ONCE


class Probes:
    """Asks the core, one request a question."""

    def __init__(
        self, ledger: RequestLedger, *, traffic: Traffic, clock: Callable[[], float]
    ) -> None:
        self._ledger = ledger
        self._traffic = traffic
        self._clock = clock

    async def vector(
        self, prompt: array[int], asker: Asker, *, pooling: engine.RequestPooling.ValueType
    ) -> RequestRecord:
        """The request whose only output's record is the prompt's vector."""
        submit = self._submit(prompt, asker)
        submit.pooling = pooling
        return await self._run(submit, asker)

    async def likelihood(
        self, prompt: array[int], asker: Asker, *, from_position: int
    ) -> RequestRecord:
        """The request that has records of the prompt's tokens from a position on."""
        submit = self._submit(prompt, asker)
        submit.prompt_records_from = from_position
        return await self._run(submit, asker)

    def _submit(self, prompt: array[int], asker: Asker) -> engine.Submit:
        caller = asker.caller
        return engine.Submit(
            tenant=caller.tenant,
            tenant_weight=caller.weight,
            tenant_max_requests=caller.max_requests,
            request_id=uuid.uuid4().hex,
            prompt_tokens=prompt.tobytes(),
            num_outputs=1,
            max_tokens=1,
            sampling=engine.RequestSampling(top_p=1.0),
            priority=asker.priority,
            skip_cache_read=asker.skip_cache_read,
            skip_cache_store=asker.skip_cache_store,
        )

    async def _run(self, submit: engine.Submit, asker: Asker) -> RequestRecord:
        record = RequestRecord(submit, now=self._clock(), deadline_at=asker.deadline_at)
        waiter = _Waiter(record)
        self._ledger.submit(record)
        try:
            await record.answered
            num_tokens = len(submit.prompt_tokens) // 4
            self._traffic.asked(submit.tenant, num_prompt_tokens=num_tokens)
            end = await waiter.end()
            self._ledger.finish(record, engine.Finish(num_tokens=end.num_tokens, reason=end.reason))
            self._ledger.close(record)
        finally:
            # nothing happens here when the end came
            self._ledger.detach(record, cancel=True)
        _raise_unless_whole(end)
        return record


async def run_all(works: Sequence[Coroutine[Any, Any, T]], *, at_once: int) -> list[T]:
    """The results of all, in their order; the first that fails ends the others."""
    slots = asyncio.Semaphore(at_once)

    async def run(work: Coroutine[Any, Any, T]) -> T:
        try:
            async with slots:
                return await work
        finally:
            work.close()

    tasks = [asyncio.create_task(run(work)) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Waiter:
    """Listens to a record until its only output has ended."""

    def __init__(self, record: RequestRecord) -> None:
        self._record = record
        self._news = asyncio.Event()
        record.listener = self

    def wake(self) -> None:
        """Something came."""
        self._news.set()

    async def end(self) -> engine.OutputEnd:
        """The core's word; raises what ended the request otherwise."""
        output = self._record.outputs[0]
        while output.end is None or len(output.tokens) < output.end.num_tokens:
            self._news.clear()
            if self._record.failure is not None:
                raise self._record.failure
            await self._news.wait()
        return output.end


def _raise_unless_whole(end: engine.OutputEnd) -> None:
    if end.reason == engine.END_REASON_LENGTH:
        return
    errors: dict[int, CallError] = {
        engine.END_REASON_DEADLINE: DeadlinePassed("the caller's deadline passed"),
        engine.END_REASON_DRAINED: Unavailable(
            "the replica stopped before the request's end", reason="DRAINED"
        ),
        engine.END_REASON_QUEUE_TIME: Overloaded(
            end.message, reason="QUEUE_TIME", retry_after_ms=_RETRY_AFTER_MS
        ),
    }
    raise errors.get(end.reason) or GenerationFailed(end.message or "the request was ended")
