"""InferenceService: one short method for each RPC. Knows neither tokens nor the core's messages."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

from octavo.v1 import inference_pb2 as api
from octavo.v1 import inference_pb2_grpc
from scheduler_svc.frontend.answers import Answers
from scheduler_svc.frontend.batches import Batches
from scheduler_svc.frontend.call import Call
from scheduler_svc.frontend.callers import Callers
from scheduler_svc.frontend.calls import Calls, Context
from scheduler_svc.frontend.errors import (
    InvalidRequest,
    RequestUnknown,
    Unavailable,
    Violation,
)
from scheduler_svc.frontend.estimates import Estimates
from scheduler_svc.frontend.generation_stream import GenerationStream
from scheduler_svc.frontend.generations import Generations
from scheduler_svc.frontend.ledger import RequestLedger
from scheduler_svc.frontend.parse import RequestParser, check_request_id
from scheduler_svc.frontend.request import ParsedRequest
from scheduler_svc.frontend.serving import Serving
from scheduler_svc.frontend.texts import Texts
from scheduler_svc.frontend.vectors import Vectors
from scheduler_svc.frontend.violations import Violations
from scheduler_svc.security.key_records import Caller

CANCEL_LIMIT_S = 10.0
# Nobody waits for the parts of a whole answer; stop strings are looked for this often.
_WHOLE_ANSWER_INTERVAL = 8
# No request has more; further entries are found out when its outputs are known.
_MAX_OUTPUTS = 1024


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Answers the calls of one frontend."""

    def __init__(
        self,
        *,
        parser: RequestParser,
        generations: Generations,
        answers: Answers,
        batches: Batches,
        texts: Texts,
        estimates: Estimates,
        vectors: Vectors,
        calls: Calls,
        callers: Callers,
        serving: Serving,
        ledger: RequestLedger,
        describe: Callable[[], api.GetModelInfoResponse],
        clock: Callable[[], float],
    ) -> None:
        self._parser = parser
        self._generations = generations
        self._answers = answers
        self._batches = batches
        self._texts = texts
        self._estimates = estimates
        self._vectors = vectors
        self._calls = calls
        self._callers = callers
        self._serving = serving
        self._ledger = ledger
        self._describe = describe
        self._clock = clock

    async def Generate(  # type: ignore[override]  # grpc.aio takes handlers that write, too
        self, request: api.GenerateRequest, context: Context
    ) -> None:
        """Streams a new generation, or goes on with a known one."""
        resume = request.resume if request.HasField("resume") else None
        async with self._request(
            context,
            method="Generate",
            request_id=request.generation.request_id,
            is_continuation=resume is not None,
        ) as (call, caller):
            parsed = await self._parsed(request, call, caller, resume)
            stream = await self._generations.start(
                parsed, caller=caller, deadline_at=self._deadline(context)
            )
            await self._answers.stream(
                stream,
                context,
                lambda chunk: api.GenerateResponse(chunk=chunk),
                call=call,
            )

    async def GenerateUnary(
        self, request: api.GenerateUnaryRequest, context: Context
    ) -> api.GenerateUnaryResponse:
        """Answers a generation as a whole."""
        request_id = request.generation.request_id
        async with self._request(context, method="GenerateUnary", request_id=request_id) as (
            call,
            caller,
        ):
            stream = await self._whole_stream(request, call, caller, self._deadline(context))
            return await self._answers.whole(stream, context, call=call)

    async def GenerateBatch(  # type: ignore[override]  # grpc.aio takes handlers that write, too
        self, request: api.GenerateBatchRequest, context: Context
    ) -> None:
        """Answers many generations, each as a whole."""
        async with self._calls.answer(context, method="GenerateBatch"):
            self._serving.check_accepts()
            deadline_at = self._deadline(context)

            async def run(generation: api.Generation, call: Call) -> api.GenerateUnaryResponse:
                with self._callers.request(context, is_new=True) as caller:
                    entry = api.GenerateUnaryRequest(generation=generation)
                    stream = await self._whole_stream(entry, call, caller, deadline_at)
                    return await self._answers.whole(stream, None, call=call)

            await self._batches.run(
                request.generations,
                context,
                run,
                max_requests=self._callers.of(context).max_requests,
            )

    async def Attach(  # type: ignore[override]  # grpc.aio takes handlers that write, too
        self, request: api.AttachRequest, context: Context
    ) -> None:
        """Goes on with the stream of a known generation."""
        async with self._request(
            context, method="Attach", request_id=request.request_id, is_continuation=True
        ) as (call, caller):
            violations = Violations()
            check_request_id(request.request_id, field="request_id", violations=violations)
            for index, count in enumerate(request.from_tokens[:_MAX_OUTPUTS]):
                violations.integer(f"from_tokens[{index}]", count, least=0, most=2**31 - 1)
            violations.raise_if_any()
            stream = await self._generations.attach(
                request.request_id,
                request.from_tokens,
                tenant=caller.tenant,
                deadline_at=self._deadline(context),
            )
            await self._answers.stream(
                stream, context, lambda chunk: api.AttachResponse(chunk=chunk), call=call
            )

    async def Cancel(self, request: api.CancelRequest, context: Context) -> api.CancelResponse:
        """Ends a generation."""
        async with self._calls.answer(context, method="Cancel") as call:
            call.request_id = request.request_id
            violations = Violations()
            check_request_id(request.request_id, field="request_id", violations=violations)
            violations.raise_if_any()
            return api.CancelResponse(
                outcome=await self._cancel(
                    request.request_id, tenant=self._callers.of(context).tenant
                )
            )

    async def Tokenize(
        self, request: api.TokenizeRequest, context: Context
    ) -> api.TokenizeResponse:
        """A prompt's ids."""
        async with self._calls.answer(context, method="Tokenize"):
            return await self._texts.tokenize(request)

    async def Detokenize(
        self, request: api.DetokenizeRequest, context: Context
    ) -> api.DetokenizeResponse:
        """The text of ids."""
        async with self._calls.answer(context, method="Detokenize"):
            return await self._texts.detokenize(request)

    async def Estimate(
        self, request: api.EstimateRequest, context: Context
    ) -> api.EstimateResponse:
        """What a generation would meet."""
        async with self._calls.answer(context, method="Estimate"):
            self._serving.check_accepts()
            return await self._estimates.estimate(request, self._callers.of(context))

    async def Embed(self, request: api.EmbedRequest, context: Context) -> api.EmbedResponse:
        """Vectors of prompts."""
        async with self._request(context, method="Embed", request_id="") as (_, caller):
            self._serving.check_accepts()
            deadline_at = self._deadline(context)
            return await self._vectors.embed(request, caller, deadline_at=deadline_at)

    async def Score(self, request: api.ScoreRequest, context: Context) -> api.ScoreResponse:
        """How likely continuations are."""
        async with self._request(context, method="Score", request_id="") as (_, caller):
            self._serving.check_accepts()
            deadline_at = self._deadline(context)
            return await self._vectors.score(request, caller, deadline_at=deadline_at)

    async def GetModelInfo(
        self, request: api.GetModelInfoRequest, context: Context
    ) -> api.GetModelInfoResponse:
        """What is served."""
        async with self._calls.answer(context, method="GetModelInfo"):
            return self._describe()

    async def refuse_unreadable(self, context: Context, method: str) -> None:
        """Ends a call whose message is none."""
        async with self._calls.answer(context, method=method):
            rule = f"must be a valid message of {method}, with its texts in UTF-8"
            raise InvalidRequest([Violation(field="request", rule=rule)])

    @asynccontextmanager
    async def _request(
        self, context: Context, *, method: str, request_id: str, is_continuation: bool = False
    ) -> AsyncIterator[tuple[Call, Caller]]:
        """Around a call that streams a request: who calls, within the tenant's limit."""
        async with self._calls.answer(context, method=method) as call:
            call.request_id, call.is_continuation = request_id, is_continuation
            with self._callers.request(context, is_new=not is_continuation) as caller:
                yield call, caller

    async def _parsed(
        self,
        request: api.GenerateRequest | api.GenerateUnaryRequest,
        call: Call,
        caller: Caller,
        resume: api.Resume | None,
    ) -> ParsedRequest:
        self._serving.check_accepts()
        generation = request.generation if request.HasField("generation") else None
        parsed = await self._parser.parse(
            generation, resume=resume, priorities=(caller.most_urgent, caller.least_urgent)
        )
        call.request_id, call.parsed_at = parsed.request_id, self._clock()
        return parsed

    async def _whole_stream(
        self,
        request: api.GenerateUnaryRequest,
        call: Call,
        caller: Caller,
        deadline_at: float | None,
    ) -> GenerationStream:
        """The stream of a new generation of which nobody waits for the parts."""
        parsed = await self._parsed(request, call, caller, None)
        rules = dataclasses.replace(parsed.text_rules, stream_interval=_WHOLE_ANSWER_INTERVAL)
        return await self._generations.start(
            dataclasses.replace(parsed, text_rules=rules), caller=caller, deadline_at=deadline_at
        )

    async def _cancel(self, request_id: str, *, tenant: str) -> api.CancelOutcome.ValueType:
        try:
            async with asyncio.timeout(CANCEL_LIMIT_S):
                answer = await self._ledger.cancel(tenant=tenant, request_id=request_id)
        except TimeoutError as error:
            text = f"the scheduler did not answer for {CANCEL_LIMIT_S:.0f} s"
            raise Unavailable(text, reason="CORE_UNREACHABLE", retry_after_ms=1000) from error
        if not answer.is_known:
            raise RequestUnknown(f"request id {request_id!r} is not known")
        if answer.was_finished:
            return api.CANCEL_OUTCOME_ALREADY_FINISHED
        return api.CANCEL_OUTCOME_CANCELLED

    def _deadline(self, context: Context) -> float | None:
        """When the caller's deadline passes, on our clock; None when there is none."""
        # typed as a float, but None without a deadline
        remaining_s = cast("float | None", context.time_remaining())
        return None if remaining_s is None else self._clock() + remaining_s
