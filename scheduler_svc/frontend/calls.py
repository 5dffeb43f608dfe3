"""How every call ends, whatever happens inside, and how many are open. Knows not what methods do.

A call's end is decided by what was sent, never by the context's `cancelled()`, which is false while
a handler is being cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import grpc.aio

from scheduler_svc.frontend.access_log import write_access_line
from scheduler_svc.frontend.call import Call
from scheduler_svc.frontend.call_spans import end_span
from scheduler_svc.frontend.errors import (
    CallError,
    DeadlinePassed,
    GenerationFailed,
    InvalidRequest,
    Unavailable,
)
from scheduler_svc.frontend.span import CallTracer
from scheduler_svc.frontend.status import rich_status
from scheduler_svc.frontend.traffic import Traffic

Context = grpc.aio.ServicerContext[Any, Any]
# A status waits behind what the client has not read; it goes out later, without the handler.
_STATUS_LIMIT_S = 2.0
# the client's own timer may end the call just before ours would
_DEADLINE_SLACK_S = 0.05
_REFUSALS = ("INVALID_REQUEST", "MODEL_NOT_FOUND", "CORE_UNREACHABLE", "DRAINING", "TENANT_LIMIT")
_LOG = logging.getLogger(__name__)


class Calls:
    """All open calls of this process."""

    def __init__(
        self, traffic: Traffic, *, clock: Callable[[], float], tracer: CallTracer | None = None
    ) -> None:
        self._traffic = traffic
        self._tracer = tracer
        self._clock = clock
        self._num_open = 0
        self._all_ended = asyncio.Event()
        self._all_ended.set()

    @property
    def num_open(self) -> int:
        """Calls whose handlers have not returned."""
        return self._num_open

    async def wait_for_end(self, limit_s: float) -> bool:
        """Waits until no handler runs; returns whether that came in time."""
        try:
            async with asyncio.timeout(limit_s):
                await self._all_ended.wait()
        except TimeoutError:
            return False
        return True

    @asynccontextmanager
    async def answer(self, context: Context, *, method: str) -> AsyncIterator[Call]:
        """Around a handler's work: turns what it raises into the call's status."""
        call = Call(method=method, arrived_at=self._clock())
        self._begin(call, context)
        try:
            yield call
        except CallError as error:
            self.count_refusal(error)
            call.note_failure(error.code, error.reason)
            await _end(context, error, call)
        except asyncio.CancelledError:
            # The client left, which makes this fail; or a task of ours was cancelled, and then the
            # client must not wait for ever.
            _note_departure(context, call)
            await _end(context, _interrupted(), call)
            raise
        except grpc.aio.BaseError as error:
            _LOG.debug("a call broke: %r", error)
            _note_departure(context, call)
            raise
        except Exception:  # noqa: BLE001 - whatever it is, the client gets a status
            _LOG.exception("a call failed, request id %r", call.request_id)
            failure = GenerationFailed("the service failed; its log says how")
            call.note_failure(failure.code, failure.reason)
            await _end(context, failure, call)
        finally:
            self._finish(call)

    def _begin(self, call: Call, context: Context) -> None:
        self._num_open += 1
        self._all_ended.clear()
        self._traffic.call_started(call.method)
        if self._tracer is not None:
            call.span = self._tracer.begin(
                method=call.method,
                metadata=dict(context.invocation_metadata() or ()),
                now=call.arrived_at,
            )

    def _finish(self, call: Call) -> None:
        self._num_open -= 1
        if not self._num_open:
            self._all_ended.set()
        self._traffic.call_ended(call.method, call.code.name)
        self.tell_end(call)

    def tell_end(self, call: Call) -> None:
        """Counts and logs the end of a request, be it a call or a part of one."""
        if call.stream is not None and call.reason:
            self._traffic.aborted(call.reason.lower())
        now = self._clock()
        write_access_line(call, now=now)
        end_span(call, now=now)

    def count_refusal(self, error: CallError) -> None:
        """Counts a request that was refused here; what the core refuses, the core counts."""
        if error.reason in _REFUSALS and not error.comes_from_core:
            self._traffic.refused(error.reason.lower())


def _note_departure(context: Context, call: Call) -> None:
    """The client ended the call, or its deadline did."""
    remaining_s = cast("float | None", context.time_remaining())
    if remaining_s is not None and remaining_s <= _DEADLINE_SLACK_S:
        call.note_failure(DeadlinePassed.code, DeadlinePassed.reason)
    else:
        call.note_failure(grpc.StatusCode.CANCELLED, "CLIENT_LEFT")


def _interrupted() -> Unavailable:
    return Unavailable("the call was interrupted inside the service", reason="INTERRUPTED")


async def _end(context: Context, error: CallError, call: Call) -> None:
    """Ends the call with the error's status; raises AbortError once that is sent."""
    if not isinstance(error, InvalidRequest):
        _LOG.debug("request id %r: %s %s", call.request_id, error.reason, error.message)
    try:
        async with asyncio.timeout(_STATUS_LIMIT_S):
            await context.abort_with_status(rich_status(error, request_id=call.request_id))
    except TimeoutError:
        _LOG.debug("the client does not read; its status waits")
    except grpc.aio.AbortError:
        call.note_failure(error.code, error.reason)  # it was told this, whatever we thought before
        raise
    except grpc.aio.BaseError as broken:
        _LOG.debug("nobody takes the status: %r", broken)
