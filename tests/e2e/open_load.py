"""An open load: requests come at their own pace, whatever becomes of those before them.

Knows outcomes and times, judges neither.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
import grpc.aio

from octavo.failures import was_accepted
from octavo.v1 import inference_pb2 as api
from octavo.v1.inference_pb2_grpc import InferenceServiceStub
from tests.e2e.calls import generation
from tests.fakes.hash_tokens import expected_tokens

_RETRY_HINT = "grpc-retry-pushback-ms"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What every request of a load asks for; the prompt says which one it is."""

    num_prompt_tokens: int
    num_tokens: int
    vocab_size: int
    deadline_s: float

    def prompt(self, number: int) -> list[int]:
        """Its tokens."""
        return [(number // self.vocab_size**j) % self.vocab_size for j in range(4)] + [
            j % self.vocab_size for j in range(self.num_prompt_tokens - 4)
        ]


@dataclass
class Outcomes:
    """What became of the requests of a load. Times are seconds."""

    num_sent: int = 0
    num_whole: int = 0
    num_late: int = 0
    num_wrong: int = 0
    num_without_hint: int = 0
    refusals_s: list[float] = field(default_factory=list)
    first_tokens_s: list[float] = field(default_factory=list)
    totals_s: list[float] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)
    lasted_s: float = 0.0

    @property
    def num_refused(self) -> int:
        """How many were turned away before they began."""
        return len(self.refusals_s)


class OpenLoad:
    """Sends requests of one kind on a few connections."""

    def __init__(self, target: str, job: Job, *, num_connections: int = 8) -> None:
        self._job = job
        self.outcomes = Outcomes()
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels = [
            grpc.aio.insecure_channel(target, options) for _ in range(num_connections)
        ]
        self._stubs = [InferenceServiceStub(channel) for channel in self._channels]

    async def at_rate(self, per_s: float, *, seconds: float, first: int = 0) -> None:
        """So many requests a second, evenly, each whether or not the others are answered."""
        began_at = time.monotonic()
        running: set[asyncio.Task[None]] = set()
        for number in range(int(per_s * seconds)):
            await asyncio.sleep(began_at + number / per_s - time.monotonic())
            task = asyncio.create_task(self._one(first + number))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)
        self.outcomes.lasted_s = time.monotonic() - began_at

    async def all_at_once(self, num_requests: int) -> None:
        """A burst."""
        await asyncio.gather(*(self._one(number) for number in range(num_requests)))

    async def at_width(self, width: int, *, seconds: float, first: int = 0) -> None:
        """Always so many at a time: as much as a service does that nobody presses."""
        began_at = time.monotonic()
        numbers = iter(range(first, 1 << 40))

        async def go_on() -> None:
            while time.monotonic() < began_at + seconds:
                await self._one(next(numbers))

        await asyncio.gather(*(go_on() for _ in range(width)))
        self.outcomes.lasted_s = time.monotonic() - began_at

    async def close(self) -> None:
        """Ends the connections."""
        for channel in self._channels:
            await channel.close()

    async def _one(self, number: int) -> None:
        job, outcomes = self._job, self.outcomes
        outcomes.num_sent += 1
        prompt = job.prompt(number)
        wanted = generation(prompt, max_tokens=job.num_tokens)
        began_at = time.monotonic()
        call = self._stubs[number % len(self._stubs)].Generate(
            api.GenerateRequest(generation=wanted), timeout=job.deadline_s
        )
        tokens: list[int] = []
        try:
            async for response in call:
                if not tokens:
                    outcomes.first_tokens_s.append(time.monotonic() - began_at)
                tokens += [id_ for delta in response.chunk.outputs for id_ in delta.token_ids]
        except grpc.aio.AioRpcError as error:
            self._note_failure(error, time.monotonic() - began_at)
            return
        self._note_whole(prompt, tokens, time.monotonic() - began_at)

    def _note_whole(self, prompt: Sequence[int], tokens: Sequence[int], seconds: float) -> None:
        job, outcomes = self._job, self.outcomes
        outcomes.num_whole += 1
        outcomes.totals_s.append(seconds)
        expected = expected_tokens(prompt, job.num_tokens, vocab_size=job.vocab_size)
        outcomes.num_wrong += list(tokens) != expected

    def _note_failure(self, error: grpc.aio.AioRpcError, seconds: float) -> None:
        outcomes, code = self.outcomes, error.code()
        is_full = code is grpc.StatusCode.RESOURCE_EXHAUSTED
        is_late = code is grpc.StatusCode.DEADLINE_EXCEEDED
        if was_accepted(error) and is_late:
            outcomes.num_late += 1
        elif not was_accepted(error) and (is_full or is_late):
            outcomes.refusals_s.append(seconds)
            names = {key for key, _ in error.trailing_metadata() or ()}
            outcomes.num_without_hint += is_full and _RETRY_HINT not in names
        else:
            outcomes.problems[f"{code.name}: {error.details()}"] += 1
