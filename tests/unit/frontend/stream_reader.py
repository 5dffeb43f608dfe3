"""A client of one stream, in a task of its own, that joins what it gets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from octavo.v1 import inference_pb2 as api
from tests.unit.frontend.scripted_core import WAIT_LIMIT_S

if TYPE_CHECKING:  # a name for type checkers only
    from octavo.v1.inference_pb2_grpc import InferenceServiceAsyncStub


def generation(
    prompt: str | Sequence[int] = "hi",
    *,
    request_id: str = "",
    seed: int | None = None,
    n: int | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    stop: Sequence[str] = (),
    stop_token_ids: Sequence[int] = (),
    include_stop: bool | None = None,
    skip_special_tokens: bool | None = None,
    stream_interval: int | None = None,
    keep_for_s: float | None = None,
) -> api.Generation:
    """A request with what tests vary."""
    kind = (
        api.Prompt(text=prompt)
        if isinstance(prompt, str)
        else api.Prompt(token_ids=api.TokenIds(ids=prompt))
    )
    return api.Generation(
        request_id=request_id,
        prompt=kind,
        sampling=api.SamplingParams(seed=seed, n=n),
        stopping=api.StoppingParams(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop=stop,
            stop_token_ids=stop_token_ids,
            include_stop=include_stop,
        ),
        output=api.OutputParams(
            skip_special_tokens=skip_special_tokens, stream_interval=stream_interval
        ),
        scheduling=api.SchedulingParams(keep_for_s=keep_for_s),
    )


class Reader:
    """Calls Generate, or Attach, at once; `read_all` waits for the end."""

    def __init__(
        self,
        stub: InferenceServiceAsyncStub,
        wanted: api.Generation | api.AttachRequest,
        *,
        resume: api.Resume | None = None,
        timeout_s: float = WAIT_LIMIT_S,
        received: Sequence[int] = (),
        metadata: Sequence[tuple[str, str]] = (),
    ) -> None:
        """`received`: how many tokens of each output this client has already."""
        self.call: Any
        if isinstance(wanted, api.AttachRequest):
            self.call = stub.Attach(wanted, timeout=timeout_s, metadata=metadata)
        else:
            request = api.GenerateRequest(generation=wanted, resume=resume)
            self.call = stub.Generate(request, timeout=timeout_s, metadata=metadata)
        self.chunks: list[api.StreamChunk] = []
        self.received = list(received)
        # the call begins with its first use
        self._first: asyncio.Future[Any] | None = asyncio.ensure_future(self.call.read())

    async def read_one(self) -> api.StreamChunk | None:
        """The next chunk; None at the end."""
        first, self._first = self._first, None
        async with asyncio.timeout(WAIT_LIMIT_S):
            response = await (first if first is not None else self.call.read())
        if response is grpc.aio.EOF:
            return None
        chunk: api.StreamChunk = response.chunk
        self._check(chunk)
        self.chunks.append(chunk)
        return chunk

    async def read_all(self) -> None:
        """Reads to the end; raises what ended the call."""
        while await self.read_one() is not None:
            pass
        async with asyncio.timeout(WAIT_LIMIT_S):
            self.headers = dict(await self.call.initial_metadata())

    def _check(self, chunk: api.StreamChunk) -> None:
        assert chunk.HasField("start") == (not self.chunks)
        for delta in chunk.outputs:
            have = self.received[delta.index] if delta.index < len(self.received) else 0
            have += sum(
                len(d.token_ids) for c in self.chunks for d in c.outputs if d.index == delta.index
            )
            assert delta.first_token_index == have, "a token repeated or skipped"

    def _of(self, index: int) -> list[api.OutputDelta]:
        return [d for chunk in self.chunks for d in chunk.outputs if d.index == index]

    @property
    def _num_outputs(self) -> int:
        return 1 + max((d.index for chunk in self.chunks for d in chunk.outputs), default=-1)

    @property
    def texts(self) -> list[str]:
        """Joined text by output."""
        return ["".join(d.text for d in self._of(i)) for i in range(self._num_outputs)]

    @property
    def ids(self) -> list[list[int]]:
        """Joined ids by output."""
        return [[t for d in self._of(i) for t in d.token_ids] for i in range(self._num_outputs)]

    @property
    def finishes(self) -> list[api.Finish]:
        """The finish of each output; every output has exactly one, in its last delta."""
        found = []
        for index in range(self._num_outputs):
            deltas = self._of(index)
            assert [d.HasField("finish") for d in deltas] == [False] * (len(deltas) - 1) + [True]
            found.append(deltas[-1].finish)
        return found


class Refusal:
    """How a call failed, details and all."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.code = error.code()
        self.text = error.details() or ""
        self.trailers = dict(error.trailing_metadata() or ())
        self.info = error_details_pb2.ErrorInfo()
        self.retry = error_details_pb2.RetryInfo()
        self.bad_request = error_details_pb2.BadRequest()
        packed = status_pb2.Status.FromString(self.trailers.get("grpc-status-details-bin", b""))
        for detail in packed.details:
            for message in (self.info, self.retry, self.bad_request):
                detail.Unpack(message)

    @property
    def fields(self) -> list[str]:
        """The paths of the fields that break rules."""
        return [violation.field for violation in self.bad_request.field_violations]


async def refusal_of(reader: Reader) -> Refusal:
    """Reads to the end, which has to be an error."""
    try:
        await reader.read_all()
    except grpc.aio.AioRpcError as error:
        return Refusal(error)
    raise AssertionError("the call ended well")
