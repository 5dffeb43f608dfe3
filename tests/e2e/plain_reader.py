"""A client without our SDK that leaves its stream and comes back, as docs/clients.md says one may.

It knows the API alone: Attach where the generation ran, Generate with `resume` where nobody
knows it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from octavo import SamplingParams
from octavo.v1 import inference_pb2 as api
from octavo.v1.inference_pb2_grpc import InferenceServiceStub
from tests.e2e.calls import Received, generation

if TYPE_CHECKING:  # the stub's file alone knows this class
    from octavo.v1.inference_pb2_grpc import InferenceServiceAsyncStub

    _Attach = grpc.aio.UnaryStreamCall[api.AttachRequest, api.AttachResponse]
    _Generate = grpc.aio.UnaryStreamCall[api.GenerateRequest, api.GenerateResponse]

_PATIENCE_S = 90.0
_BROKEN = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.INTERNAL,  # a connection reset in the middle of a stream
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.CANCELLED,
)


class PlainReader:
    """Reads one generation to its end, over as many calls as it takes."""

    def __init__(
        self,
        targets: Sequence[str],
        prompt: Sequence[int],
        params: SamplingParams,
        request_id: str,
        *,
        on_news: Callable[[], None],
    ) -> None:
        self.num_calls = 0
        self._targets = list(targets)
        self._place = 0
        self._generation = generation(
            prompt,
            max_tokens=params.max_tokens or 0,
            temperature=params.temperature or 0.0,
            seed=params.seed,
            request_id=request_id,
            keep_for_s=30.0,
        )
        self._on_news = on_news
        self._got = Received()
        self._was_accepted = False
        self._began_at = time.monotonic()

    async def read(self, pauses: Iterator[tuple[int, float]]) -> tuple[list[int], str]:
        """All tokens and the text; leaves after the tokens, and for the seconds, in `pauses`."""
        channels = [
            grpc.aio.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])
            for target in self._targets
        ]
        stubs = [InferenceServiceStub(channel) for channel in channels]
        num_unknown = 0
        try:
            while self._got.finish is None:
                if time.monotonic() - self._began_at > _PATIENCE_S:
                    raise TimeoutError(f"{len(self._got.token_ids)} tokens, {self.num_calls} calls")
                attaches = self._was_accepted and num_unknown < len(stubs)
                num_tokens, away_s = next(pauses, (1 << 30, 0.0))
                try:
                    await self._read_some(stubs[self._place], num_tokens, attaches=attaches)
                    num_unknown = 0
                    await asyncio.sleep(away_s)
                except grpc.aio.AioRpcError as error:
                    if error.code() is grpc.StatusCode.NOT_FOUND:
                        num_unknown += 1
                    elif error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                        num_unknown = len(stubs)  # it knows fewer tokens than we do
                        continue
                    elif error.code() not in _BROKEN:
                        raise
                    else:
                        await asyncio.sleep(0.1)
                    self._place = (self._place + 1) % len(stubs)
        finally:
            for channel in channels:
                await channel.close()
        return self._got.token_ids, self._got.text

    async def _read_some(
        self, stub: InferenceServiceAsyncStub, num_tokens: int, *, attaches: bool
    ) -> None:
        self.num_calls += 1
        call = self._attach(stub) if attaches else self._generate(stub)
        num_left = num_tokens
        try:
            async for response in call:
                self._was_accepted = True
                for delta in response.chunk.outputs:
                    self._take(delta)
                    num_left -= len(delta.token_ids)
                if num_left <= 0 and self._got.finish is None:
                    return
        finally:
            call.cancel()

    def _take(self, delta: api.OutputDelta) -> None:
        num_known = len(self._got.token_ids)
        assert delta.first_token_index == num_known, f"{delta.first_token_index} after {num_known}"
        self._got.token_ids += delta.token_ids
        self._got.text += delta.text
        if delta.HasField("finish"):
            self._got.finish = delta.finish
        self._on_news()

    def _attach(self, stub: InferenceServiceAsyncStub) -> _Attach:
        return stub.Attach(
            api.AttachRequest(
                request_id=self._generation.request_id, from_tokens=[len(self._got.token_ids)]
            )
        )

    def _generate(self, stub: InferenceServiceAsyncStub) -> _Generate:
        request = api.GenerateRequest(generation=self._generation)
        if self._was_accepted:
            known = api.ResumedOutput(token_ids=self._got.token_ids)
            age_ms = int(1000 * (time.monotonic() - self._began_at))
            seed = self._generation.sampling.seed
            request.resume.CopyFrom(api.Resume(outputs=[known], seed=seed, age_ms=age_ms))
        return stub.Generate(request)
