"""How every call ends, whatever happens inside, and how many are open. Knows no method.

A call's end is decided by what was sent, never by the context's `cancelled()`, which is false while
a handler is being cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio

from scheduler_svc.frontend.errors import CallError, GenerationFailed, InvalidRequest, Unavailable
from scheduler_svc.frontend.status import rich_status
from scheduler_svc.frontend.traffic import Traffic

Context = grpc.aio.ServicerContext[Any, Any]
# A status waits behind what the client has not read; it goes out later, without the handler.
_STATUS_LIMIT_S = 2.0
_REFUSALS = ("INVALID_REQUEST", "MODEL_NOT_FOUND", "CORE_UNREACHABLE", "DRAINING")
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Call:
    """One call in progress; its request id is told with any error."""

    request_id: str = ""


class Calls:
    """All open calls of this process."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
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
    async def answer(self, context: Context) -> AsyncIterator[Call]:
        """Around a handler's work: turns what it raises into the call's status."""
        call = Call()
        self._num_open += 1
        self._all_ended.clear()
        try:
            yield call
        except CallError as error:
            self._count(error)
            await _end(context, error, call)
        except asyncio.CancelledError:
            # The client left, which makes this fail; or a task of ours was cancelled, and then the
            # client must not wait for ever.
            await _end(context, _interrupted(), call)
            raise
        except grpc.aio.BaseError as error:
            _LOG.debug("a call broke: %r", error)
            raise
        except Exception:  # noqa: BLE001 - whatever it is, the client gets a status
            _LOG.exception("a call failed, request id %r", call.request_id)
            await _end(context, GenerationFailed("the service failed; its log says how"), call)
        finally:
            self._num_open -= 1
            if not self._num_open:
                self._all_ended.set()

    def _count(self, error: CallError) -> None:
        # what the core refuses, the core counts
        if error.reason in _REFUSALS and not error.comes_from_core:
            self._traffic.refused(error.reason.lower())


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
        raise
    except grpc.aio.BaseError as broken:
        _LOG.debug("nobody takes the status: %r", broken)
