"""An event loop in a thread of its own, with the asyncio client on it. Knows nothing of batches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from octavo.aio import AsyncClient
from octavo.prompts import MessagesInput, PromptInput
from octavo.requests import ChatOptions
from octavo.results import Delta, Generation
from octavo.retries import ReconnectPolicy
from octavo.sampling import SamplingParams

_CLOSE_LIMIT_S = 10.0
# A frontend that fell is there again within seconds; after that the service itself has ended.
_RECONNECT = ReconnectPolicy(limit_s=15.0)
# A progress bar needs no token at once; larger chunks cost less.
_STREAM_INTERVAL = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request: a plain prompt or a conversation."""

    request_id: str
    prompt: PromptInput | None = None
    messages: MessagesInput | None = None
    params: SamplingParams | None = None


class ClientLoop:
    """Runs jobs against one address, a bounded number of them at a time, the others in order."""

    def __init__(self, target: str, *, max_in_flight: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="octavo-engine", daemon=True
        )
        # One target, as it is: a path may hold commas.
        self._client = AsyncClient([target], reconnect=_RECONNECT)
        self._room = asyncio.Semaphore(max_in_flight)

    def start(self) -> None:
        """Begins to run."""
        self._thread.start()

    def submit(self, job: Job, *, on_delta: Callable[[str, Delta], None]) -> Future[Generation]:
        """Begins a job; cancelling the future cancels it on the service. `on_delta` runs here."""
        return asyncio.run_coroutine_threadsafe(self._run(job, on_delta), self._loop)

    def close(self) -> None:
        """Cancels every job and ends the thread. Repeating it is harmless."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_CLOSE_LIMIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_LIMIT_S)
        self._loop.close()

    async def _run(self, job: Job, on_delta: Callable[[str, Delta], None]) -> Generation:
        # The service is ours alone: a request whose connection is lost has no other reader.
        options = ChatOptions(
            request_id=job.request_id, keep_for_s=0.0, stream_interval=_STREAM_INTERVAL
        )
        async with (
            self._room,
            self._client.stream(
                job.prompt, messages=job.messages, params=job.params, **options
            ) as stream,
        ):
            async for delta in stream:
                on_delta(job.request_id, delta)
            return stream.partial()

    async def _close(self) -> None:
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._client.aclose()
