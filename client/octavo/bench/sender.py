"""Sends requests, from several processes if asked, and notes when tokens came. Computes nothing.

Uses the generated stubs, not the SDK's clients: those go on with broken streams and try again,
and a load generator has to see every failure once.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from octavo.bench.outcome import Outcome
from octavo.bench.workload import Request
from octavo.failures import service_error
from octavo.v1 import inference_pb2 as api
from octavo.v1.inference_pb2_grpc import InferenceServiceStub

if TYPE_CHECKING:
    from octavo.v1.inference_pb2_grpc import InferenceServiceAsyncStub

# until all processes have their requests
_START_DELAY_S = 0.3
_START_DELAY_PER_REQUEST_S = 0.001
_GREETING_LIMIT_S = 30.0
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
ALL_AT_THEIR_TIMES = 0
"""Instead of a number of clients: an open loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to reach the service, in a form that can be handed to another process."""

    target: str
    metadata: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # holds the API key
    is_tls: bool = False
    tls_ca: bytes | None = None
    tls_cert: bytes | None = None
    tls_key: bytes | None = field(default=None, repr=False)

    def channel(self) -> grpc.aio.Channel:
        """A channel for the running event loop."""
        if not self.is_tls:
            return grpc.aio.insecure_channel(self.target, options=_OPTIONS)
        credentials = grpc.ssl_channel_credentials(self.tls_ca, self.tls_key, self.tls_cert)
        return grpc.aio.secure_channel(self.target, credentials, options=_OPTIONS)


def send(
    access: Access,
    requests: Sequence[Request],
    *,
    num_clients: int = ALL_AT_THEIR_TIMES,
    num_processes: int = 1,
    timeout_s: float = 600.0,
) -> list[Outcome]:
    """Sends all requests and returns what became of them, when all have ended.

    With `num_clients`, that many each send one request after the other (closed loop); without,
    each goes out at its own time, whatever became of the others (open loop). Raises ServiceError
    when the service does not answer at all.
    """
    num_processes = max(1, min(num_processes, len(requests), num_clients or len(requests)))
    if num_processes == 1:
        _warm(access)
        return _send_share(access, requests, time.monotonic(), num_clients, timeout_s)
    shares = [requests[place::num_processes] for place in range(num_processes)]
    clients = [
        len(range(place, num_clients, num_processes)) if num_clients else ALL_AT_THEIR_TIMES
        for place in range(num_processes)
    ]
    # spawned, since gRPC does not survive a fork
    context = multiprocessing.get_context("spawn")
    with context.Pool(num_processes, initializer=_leave_signals_to_the_parent) as pool:
        pool.map(_warm, [access] * num_processes)
        start_at = time.monotonic() + _START_DELAY_S + _START_DELAY_PER_REQUEST_S * len(requests)
        jobs = [
            pool.apply_async(_send_share, (access, share, start_at, lines, timeout_s))
            for share, lines in zip(shares, clients, strict=True)
        ]
        return [outcome for job in jobs for outcome in job.get()]


def describe(access: Access) -> api.GetModelInfoResponse:
    """What is served there. Raises ServiceError."""
    return asyncio.run(_greet(access))


def _leave_signals_to_the_parent() -> None:
    """Ctrl-C goes to the whole terminal; the parent ends its pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _warm(access: Access) -> None:
    """Loads what a process needs before the clock runs."""
    asyncio.run(_greet(access))


async def _greet(access: Access) -> api.GetModelInfoResponse:
    async with access.channel() as channel:
        stub: InferenceServiceAsyncStub = InferenceServiceStub(channel)
        try:
            return await stub.GetModelInfo(
                api.GetModelInfoRequest(), timeout=_GREETING_LIMIT_S, metadata=access.metadata
            )
        except grpc.aio.AioRpcError as error:
            raise service_error(error, target=access.target) from error


def _send_share(
    access: Access, requests: Sequence[Request], start_at: float, num_clients: int, timeout_s: float
) -> list[Outcome]:
    return asyncio.run(_send_all(access, requests, start_at, num_clients, timeout_s))


async def _send_all(
    access: Access, requests: Sequence[Request], start_at: float, num_clients: int, timeout_s: float
) -> list[Outcome]:
    async with access.channel() as channel:
        line = _Line(access, InferenceServiceStub(channel), start_at, timeout_s)
        if not num_clients:
            return await asyncio.gather(*(line.send_in_time(one) for one in requests))
        waiting = deque(requests)
        done = await asyncio.gather(*(line.send_in_turn(waiting) for _ in range(num_clients)))
    return [outcome for outcomes in done for outcome in outcomes]


@dataclass(frozen=True, slots=True)
class _Line:
    """Sends single requests; its clock begins at `start_at`."""

    access: Access
    stub: InferenceServiceAsyncStub
    start_at: float
    timeout_s: float

    def now(self) -> float:
        return time.monotonic() - self.start_at

    async def send_in_time(self, wanted: Request) -> Outcome:
        await asyncio.sleep(max(0.0, wanted.send_at - self.now()))
        return await self._send(wanted, due_at=wanted.send_at)

    async def send_in_turn(self, waiting: deque[Request]) -> list[Outcome]:
        await asyncio.sleep(max(0.0, -self.now()))
        outcomes = []
        while waiting:
            outcomes.append(await self._send(waiting.popleft(), due_at=self.now()))
        return outcomes

    async def _send(self, wanted: Request, *, due_at: float) -> Outcome:
        outcome = Outcome(num_prompt=len(wanted.prompt), due_at=due_at, sent_at=self.now())
        call = self.stub.Generate(
            _message(wanted), timeout=self.timeout_s, metadata=self.access.metadata
        )
        try:
            async for response in call:
                num_tokens = sum(len(delta.token_ids) for delta in response.chunk.outputs)
                if num_tokens:
                    outcome.token_times.append(self.now())
                    outcome.token_counts.append(num_tokens)
        except grpc.aio.AioRpcError as error:
            failure = service_error(error, target=self.access.target)
            outcome.error = f"{failure.code} {failure.reason}".rstrip()
        outcome.ended_at = self.now()
        if not outcome.error and outcome.num_tokens != wanted.num_tokens:
            outcome.error = "ENDED_EARLY"  # fewer tokens than asked for, such as at a length limit
        return outcome


def _message(wanted: Request) -> api.GenerateRequest:
    return api.GenerateRequest(
        generation=api.Generation(
            prompt=api.Prompt(token_ids=api.TokenIds(ids=wanted.prompt)),
            sampling=api.SamplingParams(temperature=wanted.temperature),
            stopping=api.StoppingParams(max_tokens=wanted.num_tokens, ignore_eos=True),
        )
    )
