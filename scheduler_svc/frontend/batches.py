"""Many generations in one call, a bounded number of them at a time, answered as they end.

Nothing is begun that the client does not make room for: what is answered waits until it is taken.
When the call ends early, for whatever reason, so do all that run. Knows no parsing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence

import grpc

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.answers import Answers
from scheduler_svc.frontend.call import Call
from scheduler_svc.frontend.calls import Calls, Context
from scheduler_svc.frontend.errors import (
    CallError,
    GenerationFailed,
    InvalidRequest,
    Overloaded,
    Violation,
)
from scheduler_svc.frontend.violations import Violations

MAX_ENTRIES = 1024
# Twice what the batch of a large GPU holds; the others wait here, where they cost nothing.
MAX_AT_ONCE = 512
# How long an entry that is refused for want of room is tried again.
NO_ROOM_LIMIT_S = 60.0
_LEAST_WAIT_MS = 100
_PREFIX = "generation."
_LOG = logging.getLogger(__name__)

Run = Callable[[api.Generation, Call], Awaitable[api.GenerateUnaryResponse]]
"""Runs one entry to its end; raises the CallError that it ends with."""


class Batches:
    """Runs the batches of one frontend."""

    def __init__(self, answers: Answers, calls: Calls, *, clock: Callable[[], float]) -> None:
        self._answers = answers
        self._calls = calls
        self._clock = clock

    async def run(
        self,
        generations: Sequence[api.Generation],
        context: Context,
        run: Run,
        *,
        max_requests: int,
    ) -> None:
        """Writes the answer of each entry when it has ended.

        `max_requests` is how many its tenant may have open, 0 without a limit. Raises
        InvalidRequest for the batch itself; what is wrong with an entry is that entry's answer.
        """
        _check(generations)
        await self._answers.begin(context)
        at_once = min(len(generations), MAX_AT_ONCE, max_requests or MAX_AT_ONCE)
        waiting = _unique(generations)
        answers: asyncio.Queue[api.GenerateBatchResponse] = asyncio.Queue(maxsize=1)
        workers = [
            asyncio.create_task(self._work(waiting, run, answers.put)) for _ in range(at_once)
        ]
        try:
            for _ in generations:
                await self._answers.write(context, await answers.get())
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(
        self,
        waiting: Iterator[tuple[int, api.Generation, InvalidRequest | None]],
        run: Run,
        give: Callable[[api.GenerateBatchResponse], Awaitable[None]],
    ) -> None:
        for index, generation, fault in waiting:
            await give(await self._entry(index, generation, fault, run))

    async def _entry(
        self,
        index: int,
        generation: api.Generation,
        fault: InvalidRequest | None,
        run: Run,
    ) -> api.GenerateBatchResponse:
        call = Call(
            method="GenerateBatch", arrived_at=self._clock(), request_id=generation.request_id
        )
        try:
            if fault is not None:
                raise fault
            answer = await self._answered(generation, call, run)
        except asyncio.CancelledError:
            call.note_failure(grpc.StatusCode.CANCELLED, "BATCH_LEFT")
            raise
        except CallError as error:
            self._calls.count_refusal(error)
            call.note_failure(error.code, error.reason)
            return api.GenerateBatchResponse(index=index, error=_error(error, call.request_id))
        except Exception:  # noqa: BLE001 - whatever it is, it is this entry's alone
            _LOG.exception("an entry of a batch failed, request id %r", call.request_id)
            failure = GenerationFailed("the service failed; its log says how")
            call.note_failure(failure.code, failure.reason)
            return api.GenerateBatchResponse(index=index, error=_error(failure, call.request_id))
        finally:
            self._calls.tell_end(call)
        return api.GenerateBatchResponse(index=index, answer=answer)

    async def _answered(
        self, generation: api.Generation, call: Call, run: Run
    ) -> api.GenerateUnaryResponse:
        """The entry's answer; where there is no room for it now, it waits as a caller would."""
        give_up_at = self._clock() + NO_ROOM_LIMIT_S
        while True:
            try:
                return await run(generation, call)
            except Overloaded as error:
                if call.stream is not None or self._clock() >= give_up_at:
                    raise
                await asyncio.sleep(max(error.retry_after_ms, _LEAST_WAIT_MS) / 1000)


def _check(generations: Sequence[api.Generation]) -> None:
    violations = Violations()
    if not 1 <= len(generations) <= MAX_ENTRIES:
        rule = f"must have 1 to {MAX_ENTRIES} entries, has {len(generations)}"
        violations.add("generations", rule)
    violations.raise_if_any()


def _unique(
    generations: Sequence[api.Generation],
) -> Iterator[tuple[int, api.Generation, InvalidRequest | None]]:
    """The entries, those with the id of an earlier one with their fault: it would be superseded."""
    places: dict[str, int] = {}
    for index, generation in enumerate(generations):
        name = generation.request_id
        first = places.setdefault(name, index) if name else index
        fault = None
        if first != index:
            rule = f"is the id of entry {first} of this batch"
            fault = InvalidRequest([Violation(field=f"{_PREFIX}request_id", rule=rule)])
        yield index, generation, fault


def _error(error: CallError, request_id: str) -> api.GenerationError:
    faults = error.violations if isinstance(error, InvalidRequest) else ()
    return api.GenerationError(
        code=error.code.value[0],
        message=error.message,
        reason=error.reason,
        request_id=request_id,
        faults=[
            api.FieldFault(field=one.field.removeprefix(_PREFIX), rule=one.rule) for one in faults
        ],
    )
