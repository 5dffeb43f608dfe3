"""A request's stream: chunks made of whatever came since the last one was asked for.

There is no queue: tokens wait in the record until the reader asks for the next chunk, so a slow
reader gets larger chunks. Knows nothing of gRPC or of who reads.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.errors import DeadlinePassed, GenerationFailed, Overloaded, Unavailable
from scheduler_svc.frontend.output_stream import OutputStream
from scheduler_svc.frontend.record import RequestRecord
from scheduler_svc.frontend.text_time import TextTime
from scheduler_svc.frontend.told_tokens import prompt_logprobs

_RETRY_AFTER_MS = 1000


class GenerationStream:
    """Listens to one record; `next` until it returns None or raises how the request ended."""

    def __init__(
        self,
        record: RequestRecord,
        outputs: Sequence[OutputStream | None],
        *,
        model: str,
        replica: str,
        start: api.StreamStart,
        on_finish: Callable[[RequestRecord, engine.Finish], None],
    ) -> None:
        """`outputs` by index; None for one whose end the client has already.

        `start` has what was known before the core answered.
        """
        self.record = record
        self._outputs = [output for output in outputs if output is not None]
        self._num_received = sum(
            len(mirror.tokens)
            for mirror, output in zip(record.outputs, outputs, strict=True)
            if output is None
        )
        self._num_delivered = sum(output.num_sent for output in self._outputs)
        self.model = model
        self._replica = replica
        self._start = start
        self._on_finish = on_finish
        self._news = asyncio.Event()
        self._early: list[api.OutputDelta] = []
        self._is_begun = False
        self.text_time: TextTime | None = None
        """Set to have the work on text timed."""
        record.listener = self

    @property
    def finishes(self) -> list[engine.Finish]:
        """How those outputs ended that did."""
        return [output.finish for output in self._outputs if output.finish is not None]

    @property
    def num_streamed(self) -> int:
        """Tokens of this stream so far: those the client had before are left out."""
        return sum(output.num_sent for output in self._outputs) - self._num_delivered

    def usage(self) -> api.Usage:
        """Tokens of the request so far."""
        return api.Usage(
            prompt_tokens=len(self.record.submit.prompt_tokens) // 4,
            completion_tokens=self._num_received + sum(o.num_sent for o in self._outputs),
            cached_tokens=self.record.num_cached_tokens or 0,
        )

    def wake(self) -> None:
        """Something came for this request."""
        if self._news.is_set():
            return
        if self.record.failure or any(output.is_worth_a_look for output in self._outputs):
            self._news.set()

    async def catch_up(self) -> None:
        """Takes in resumed tokens before they are submitted: a stop string may end them."""
        while any(output.has_more for output in self._outputs):
            self._early += self._advance()
            await asyncio.sleep(0)

    async def next(self) -> api.StreamChunk | None:
        """The next chunk, as soon as there is anything to say; None after the last one.

        Raises the CallError that the request ended with.
        """
        while True:
            self._news.clear()
            if self.record.failure is not None:
                raise self.record.failure
            deltas = [*self._early, *self._timed_advance()]
            self._early.clear()
            is_over = all(output.is_over for output in self._outputs)
            if deltas or (is_over and not self._is_begun):
                return self._chunk(deltas)
            if is_over:
                self._raise_status()
                return None
            if any(output.has_more for output in self._outputs):
                await asyncio.sleep(0)
            else:
                await self._news.wait()

    def _timed_advance(self) -> list[api.OutputDelta]:
        if self.text_time is None:
            return self._advance()
        with self.text_time.piece() as piece:
            deltas = self._advance()
            piece.has_made_text = bool(deltas)
        return deltas

    def _advance(self) -> list[api.OutputDelta]:
        deltas = []
        for output in self._outputs:
            if output.is_over:
                continue
            delta = output.advance()
            if delta is not None:
                deltas.append(delta)
            if output.finish is not None:
                self._on_finish(self.record, output.finish)
        return deltas

    def _chunk(self, deltas: list[api.OutputDelta]) -> api.StreamChunk:
        submit = self.record.submit
        chunk = api.StreamChunk(
            request_id=submit.request_id,
            outputs=deltas,
            usage=self.usage(),
        )
        if not self._is_begun:
            self._is_begun = True
            chunk.start.CopyFrom(self._start)
            chunk.start.MergeFrom(
                api.StreamStart(
                    seed=submit.sampling.seed,
                    replica=self._replica,
                    model=self.model,
                    max_tokens=self.record.max_tokens,
                )
            )
            if chunk.start.HasField("prompt"):
                chunk.start.prompt.token_ids.extend(array("i", submit.prompt_tokens))
            told = prompt_logprobs(submit, self.record.prompt_records)
            # an output may end before the prompt has run
            chunk.prompt_logprobs.extend(told or ())
        return chunk

    def _raise_status(self) -> None:
        """Ends that no Finish can tell."""
        finishes = self.finishes
        reasons = {finish.reason for finish in finishes}
        if engine.END_REASON_DEADLINE in reasons:
            raise DeadlinePassed("the caller's deadline passed")
        if engine.END_REASON_DRAINED in reasons:
            raise Unavailable("the replica stopped before the request's end", reason="DRAINED")
        if engine.END_REASON_QUEUE_TIME in reasons:
            raise Overloaded(
                self._messages()[0], reason="QUEUE_TIME", retry_after_ms=_RETRY_AFTER_MS
            )
        if reasons == {engine.END_REASON_ERROR} and len(finishes) == len(self.record.outputs):
            raise GenerationFailed(f"all outputs failed: {self._messages()[0]}")

    def _messages(self) -> list[str]:
        ends = (output.end.message for output in self.record.outputs if output.end is not None)
        return [message for message in ends if message] or ["unknown"]
