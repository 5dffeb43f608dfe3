"""Brings a stream to its client: chunk by chunk, or as one whole answer.

Headers go out first: from then on the request is accepted. Each chunk is written when the one
before was taken; whatever happens, the ledger learns how the stream ended. Knows no parsing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from google.protobuf.message import Message

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.call import Call
from scheduler_svc.frontend.calls import Context
from scheduler_svc.frontend.errors import SlowReader
from scheduler_svc.frontend.generation_stream import GenerationStream
from scheduler_svc.frontend.ledger import RequestLedger
from scheduler_svc.frontend.pace import Pace
from scheduler_svc.frontend.text_time import TextTime
from scheduler_svc.frontend.traffic import Traffic

REQUEST_ID_HEADER = "octavo-request-id"
REPLICA_HEADER = "octavo-replica"


class Answers:
    """Writes answers for one frontend."""

    def __init__(
        self,
        ledger: RequestLedger,
        *,
        replica: str,
        traffic: Traffic,
        slow_reader_limit_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        # headers are ASCII
        self._replica = replica.encode("ascii", "replace").decode()
        self._traffic = traffic
        self._slow_reader_limit_s = slow_reader_limit_s
        self._clock = clock

    async def stream(
        self,
        stream: GenerationStream,
        context: Context,
        wrap: Callable[[api.StreamChunk], Message],
        *,
        call: Call,
    ) -> None:
        """Writes all chunks."""

        async def write(chunk: api.StreamChunk) -> None:
            await self.write(context, wrap(chunk))

        await self._send(stream, context, write, call=call)

    async def begin(self, context: Context, *, request_id: str = "") -> None:
        """Sends the headers."""
        named = ((REQUEST_ID_HEADER, request_id),) if request_id else ()
        await context.send_initial_metadata((*named, (REPLICA_HEADER, self._replica)))

    async def write(self, context: Context, message: Message) -> None:
        """Writes one message; returns when the client's connection took it. Raises SlowReader."""
        try:
            async with asyncio.timeout(self._slow_reader_limit_s):
                await context.write(message)
        except TimeoutError as error:
            raise SlowReader(limit_s=self._slow_reader_limit_s) from error

    async def whole(
        self, stream: GenerationStream, context: Context | None, *, call: Call
    ) -> api.GenerateUnaryResponse:
        """Joins all chunks; without a context, no headers tell of this one."""
        response = api.GenerateUnaryResponse(request_id=stream.record.submit.request_id)
        response.outputs.extend(
            api.Output(index=index) for index in range(len(stream.record.outputs))
        )
        texts: list[list[str]] = [[] for _ in response.outputs]
        reasonings: list[list[str]] = [[] for _ in response.outputs]

        async def add(chunk: api.StreamChunk) -> None:
            if chunk.HasField("start"):
                response.start.CopyFrom(chunk.start)
            response.usage.CopyFrom(chunk.usage)
            response.prompt_logprobs.extend(chunk.prompt_logprobs)
            for delta in chunk.outputs:
                output = response.outputs[delta.index]
                output.token_ids.extend(delta.token_ids)
                output.logprobs.extend(delta.logprobs)
                texts[delta.index].append(delta.text)
                reasonings[delta.index].append(delta.reasoning)
                output.tool_calls.extend(
                    # each comes whole
                    api.ToolCall(id=call.id, name=call.name, arguments_json=call.arguments_json)
                    for call in delta.tool_calls
                )
                if delta.HasField("finish"):
                    output.finish.CopyFrom(delta.finish)

        await self._send(stream, context, add, call=call)
        for output, text, reasoning in zip(response.outputs, texts, reasonings, strict=True):
            output.text, output.reasoning = "".join(text), "".join(reasoning)
        return response

    async def _send(
        self,
        stream: GenerationStream,
        context: Context | None,
        give: Callable[[api.StreamChunk], Awaitable[None]],
        *,
        call: Call,
    ) -> None:
        record = stream.record
        arrived_at = None if call.is_continuation else call.arrived_at
        pace = Pace(self._traffic, record, arrived_at=arrived_at)
        call.stream, call.pace = stream, pace
        if call.span is not None:
            stream.text_time = TextTime(self._clock)
        try:
            if context is not None:
                await self.begin(context, request_id=record.submit.request_id)
            while (chunk := await stream.next()) is not None:
                pace.note_made(now=self._clock())
                await give(chunk)
                pace.note_taken(chunk, now=self._clock())
            self._ledger.close(record)
        finally:
            now = self._clock()
            pace.note_end(now=now)
            self._traffic.served(stream, is_continuation=call.is_continuation)
            # nothing happens here when the end was sent
            self._ledger.detach(record, cancel=record.is_past_deadline(now))
