"""Sends streams to a service from processes of their own and notes when tokens came.

A request is its prompt's ids, its output's length and when to send it; workloads are lists of
those, made from a seed. Knows nothing of who started the service.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from random import Random
from typing import TYPE_CHECKING

import grpc.aio

from octavo.v1 import inference_pb2 as api
from octavo.v1.inference_pb2_grpc import InferenceServiceStub

if TYPE_CHECKING:
    from octavo.v1.inference_pb2_grpc import InferenceServiceAsyncStub

_START_DELAY_S = 1.0
_CALL_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Request:
    """One stream to ask for, `send_at` seconds after the load begins."""

    prompt: tuple[int, ...]
    num_tokens: int
    temperature: float = 0.0
    send_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Stream:
    """What became of one request: seconds, and tokens received."""

    ttft_s: float
    gaps_s: tuple[float, ...]
    """Between messages that carry tokens: the stricter reading of inter-token latency."""
    num_tokens: int
    ended_at: float
    """On the machine's monotonic clock."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A load's numbers."""

    ttft_p50_s: float
    ttft_p95_s: float
    ttft_p99_s: float
    itl_p50_s: float
    itl_p95_s: float
    itl_p99_s: float
    tokens_per_s: float
    num_tokens: int


def closed(
    num_clients: int, *, num_prompt: int, num_output: int, vocab: int, seed: int
) -> list[Request]:
    """`num_clients` streams of one shape, all at once, greedy."""
    draw = Random(seed)
    return [
        Request(prompt=_prompt(draw, num_prompt, vocab), num_tokens=num_output)
        for _ in range(num_clients)
    ]


def nano(count: int, *, vocab: int, seed: int) -> list[Request]:
    """The bench that nano-vllm made known: lengths uniform 100..1024, temperature 0.6, at once."""
    draw = Random(seed)
    return [_nano_request(draw, vocab, send_at=0.0) for _ in range(count)]


def poisson(count: int, *, rate: float, vocab: int, seed: int) -> list[Request]:
    """The same lengths, arriving at random, `rate` a second on average."""
    draw = Random(seed)
    send_at, requests = 0.0, []
    for _ in range(count):
        requests.append(_nano_request(draw, vocab, send_at=send_at))
        send_at += draw.expovariate(rate)
    return requests


def send(target: str, requests: Sequence[Request], *, num_processes: int) -> Measured:
    """Sends all requests from `num_processes` processes; returns when all have ended."""
    shares = [list(requests[index::num_processes]) for index in range(num_processes)]
    with get_context("spawn").Pool(num_processes) as pool:
        pool.map(_warm, [target] * num_processes)
        start_at = time.monotonic() + _START_DELAY_S
        jobs = [pool.apply_async(_send_share, (target, share, start_at)) for share in shares]
        streams = [stream for job in jobs for stream in job.get()]
    return summary(streams, took_s=max(stream.ended_at for stream in streams) - start_at)


def summary(streams: Sequence[Stream], *, took_s: float) -> Measured:
    """Percentiles over streams and messages."""
    ttfts = sorted(stream.ttft_s for stream in streams)
    gaps = sorted(gap for stream in streams for gap in stream.gaps_s) or [0.0]
    num_tokens = sum(stream.num_tokens for stream in streams)
    return Measured(
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p95_s=percentile(ttfts, 0.95),
        ttft_p99_s=percentile(ttfts, 0.99),
        itl_p50_s=percentile(gaps, 0.5),
        itl_p95_s=percentile(gaps, 0.95),
        itl_p99_s=percentile(gaps, 0.99),
        tokens_per_s=num_tokens / took_s,
        num_tokens=num_tokens,
    )


def percentile(ranked: Sequence[float], share: float) -> float:
    """The value below which `share` of ranked values lie, by the nearest rank."""
    return ranked[min(len(ranked) - 1, round(share * (len(ranked) - 1)))]


def _prompt(draw: Random, length: int, vocab: int) -> tuple[int, ...]:
    return tuple(draw.randrange(vocab) for _ in range(length))


def _nano_request(draw: Random, vocab: int, *, send_at: float) -> Request:
    return Request(
        prompt=_prompt(draw, draw.randint(100, 1024), vocab),
        num_tokens=draw.randint(100, 1024),
        temperature=0.6,
        send_at=send_at,
    )


def _warm(target: str) -> None:
    """Loads what a process needs before the clock runs."""
    asyncio.run(_greet(target))


async def _greet(target: str) -> None:
    async with grpc.aio.insecure_channel(target) as channel:
        await InferenceServiceStub(channel).GetModelInfo(api.GetModelInfoRequest(), timeout=30)


def _send_share(target: str, requests: Sequence[Request], start_at: float) -> list[Stream]:
    return asyncio.run(_send_all(target, requests, start_at))


async def _send_all(target: str, requests: Sequence[Request], start_at: float) -> list[Stream]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        stub = InferenceServiceStub(channel)
        return await asyncio.gather(*(_send_one(stub, one, start_at) for one in requests))


async def _send_one(stub: InferenceServiceAsyncStub, wanted: Request, start_at: float) -> Stream:
    request = api.GenerateRequest(
        generation=api.Generation(
            prompt=api.Prompt(token_ids=api.TokenIds(ids=wanted.prompt)),
            sampling=api.SamplingParams(temperature=wanted.temperature),
            stopping=api.StoppingParams(max_tokens=wanted.num_tokens, ignore_eos=True),
        )
    )
    await asyncio.sleep(max(0.0, start_at + wanted.send_at - time.monotonic()))
    sent_at = last = time.monotonic()
    ttft, gaps, num_tokens = 0.0, [], 0
    async for response in stub.Generate(request, timeout=_CALL_LIMIT_S):
        got = sum(len(delta.token_ids) for delta in response.chunk.outputs)
        if not got:
            continue
        now = time.monotonic()
        if num_tokens:
            gaps.append(now - last)
        else:
            ttft = now - sent_at
        last, num_tokens = now, num_tokens + got
    if num_tokens != wanted.num_tokens:
        raise RuntimeError(f"{num_tokens} of {wanted.num_tokens} tokens came")
    return Stream(ttft_s=ttft, gaps_s=tuple(gaps), num_tokens=num_tokens, ended_at=last)
