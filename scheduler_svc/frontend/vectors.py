"""Embed and Score: from the public questions to the core's, and back. Knows no connection."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Callable, Sequence

import numpy as np

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.limits import RequestLimits
from scheduler_svc.frontend.model import ServedModel
from scheduler_svc.frontend.parse import parse_priority, within
from scheduler_svc.frontend.probes import Asker, Probes, run_all
from scheduler_svc.frontend.prompt import PromptEncoder, no_room_rule
from scheduler_svc.frontend.record import RequestRecord
from scheduler_svc.frontend.told_tokens import prompt_logprobs
from scheduler_svc.frontend.violations import Violations
from scheduler_svc.security.key_records import Caller

MAX_ENTRIES = 256
# Under a millisecond of work; more would hold up every stream of this process.
_MAX_INLINE_BYTES = 2048
_POOLINGS: dict[int, engine.RequestPooling.ValueType] = {
    api.POOLING_UNSPECIFIED: engine.REQUEST_POOLING_LAST,
    api.POOLING_LAST: engine.REQUEST_POOLING_LAST,
    api.POOLING_MEAN: engine.REQUEST_POOLING_MEAN,
}


class Vectors:
    """Answers both; raises InvalidRequest with all violations, and whatever ends a request."""

    def __init__(
        self,
        model: ServedModel,
        prompts: PromptEncoder,
        probes: Probes,
        *,
        limits: Callable[[], RequestLimits],
    ) -> None:
        self._model = model
        self._prompts = prompts
        self._probes = probes
        self._limits = limits

    async def embed(
        self, request: api.EmbedRequest, caller: Caller, *, deadline_at: float | None
    ) -> api.EmbedResponse:
        """A vector for each prompt."""
        violations, limits = Violations(), self._limits()
        asker = _asker(request.scheduling, caller, deadline_at, violations)
        pooling = violations.enum("pooling", request.pooling, api.Pooling.DESCRIPTOR)
        prompts = []
        if _check_count("prompts", len(request.prompts), violations):
            prompts = [
                await self._encoded(prompt, f"prompts[{index}]", limits, violations)
                for index, prompt in enumerate(request.prompts)
            ]
        violations.raise_if_any()
        chosen = _POOLINGS[pooling]
        records = await run_all(
            [self._probes.vector(ids, asker, pooling=chosen) for ids in prompts],
            at_once=asker.at_once,
        )
        normalizes = request.normalize if request.HasField("normalize") else True
        return api.EmbedResponse(
            embeddings=[_embedding(record, normalizes=normalizes) for record in records],
            usage=api.Usage(
                prompt_tokens=sum(len(ids) for ids in prompts),
                cached_tokens=sum(record.num_cached_tokens or 0 for record in records),
            ),
        )

    async def score(
        self, request: api.ScoreRequest, caller: Caller, *, deadline_at: float | None
    ) -> api.ScoreResponse:
        """How likely each continuation is. The first runs alone: the others share its prefix."""
        violations, limits = Violations(), self._limits()
        asker = _asker(request.scheduling, caller, deadline_at, violations)
        prompt = await self._encoded(request.prompt, "prompt", limits, violations)
        continuations: list[array[int]] = []
        if _check_count("continuations", len(request.continuations), violations):
            continuations = await self._encoded_continuations(
                request.continuations, len(prompt), limits, violations
            )
        violations.raise_if_any()
        works = [
            self._probes.likelihood(prompt + one, asker, from_position=len(prompt))
            for one in continuations
        ]
        records = await run_all(works[:1], at_once=1)
        records += await run_all(works[1:], at_once=asker.at_once)
        return api.ScoreResponse(
            scores=[_score(record) for record in records],
            usage=api.Usage(
                prompt_tokens=len(prompt) + sum(len(one) for one in continuations),
                cached_tokens=records[0].num_cached_tokens or 0,
            ),
        )

    async def _encoded(
        self, prompt: api.Prompt, field: str, limits: RequestLimits, violations: Violations
    ) -> array[int]:
        encoded = await self._prompts.encode(
            prompt, field=field, limits=limits, violations=violations
        )
        if len(encoded.token_ids) >= limits.max_sequence_tokens:
            violations.add(field, no_room_rule(len(encoded.token_ids), limits))
        return encoded.token_ids

    async def _encoded_continuations(
        self,
        continuations: Sequence[api.Continuation],
        num_prompt_tokens: int,
        limits: RequestLimits,
        violations: Violations,
    ) -> list[array[int]]:
        def encode() -> list[array[int]]:
            return [
                self._continuation(
                    one, f"continuations[{index}]", num_prompt_tokens, limits, violations
                )
                for index, one in enumerate(continuations)
            ]

        if sum(one.ByteSize() for one in continuations) <= _MAX_INLINE_BYTES:
            return encode()
        return await asyncio.to_thread(encode)

    def _continuation(
        self,
        continuation: api.Continuation,
        field: str,
        num_prompt_tokens: int,
        limits: RequestLimits,
        violations: Violations,
    ) -> array[int]:
        kind = continuation.WhichOneof("kind")
        ids: Sequence[int] = ()
        if kind is None:
            violations.add(field, "one of text or token_ids is required")
            return array("i")
        if kind == "token_ids":
            given = continuation.token_ids.ids
            field = f"{field}.token_ids.ids"
            ids = given if len(given) <= limits.max_sequence_tokens else given[:0]
            too_many = len(given) > limits.max_sequence_tokens
        else:
            num_bytes = len(continuation.text.encode())
            field = f"{field}.text"
            too_many = num_bytes > limits.max_text_bytes
            if not too_many:
                ids = self._model.tokenizer.encode(continuation.text, add_special_tokens=False)
        if too_many or num_prompt_tokens + len(ids) >= limits.max_sequence_tokens:
            most = limits.max_sequence_tokens - 1
            violations.add(field, f"must fit behind the prompt: {most} tokens together at most")
        elif not ids:
            violations.add(field, "must hold at least one token")
        return array("i", violations.token_ids(field, ids, vocab_size=limits.vocab_size))


def _asker(
    scheduling: api.SchedulingParams,
    caller: Caller,
    deadline_at: float | None,
    violations: Violations,
) -> Asker:
    priority = parse_priority(scheduling, field="scheduling.priority", violations=violations)
    return Asker(
        caller=caller,
        deadline_at=deadline_at,
        priority=within((caller.most_urgent, caller.least_urgent), priority),
        skip_cache_read=scheduling.skip_cache_read,
        skip_cache_store=scheduling.skip_cache_store,
    )


def _check_count(field: str, count: int, violations: Violations) -> bool:
    if 1 <= count <= MAX_ENTRIES:
        return True
    violations.add(field, f"must have 1 to {MAX_ENTRIES} entries, has {count}")
    return False


def _embedding(record: RequestRecord, *, normalizes: bool) -> api.Embedding:
    vector = np.frombuffer(bytes(record.outputs[0].records), "<f4").astype(np.float64)
    length = math.sqrt(float(vector @ vector))
    if normalizes and length > 0:
        vector /= length
    return api.Embedding(
        values=vector.tolist(), prompt_tokens=len(record.submit.prompt_tokens) // 4
    )


def _score(record: RequestRecord) -> api.ContinuationScore:
    told = prompt_logprobs(record.submit, record.prompt_records)
    assert told is not None, "all records of a prompt come before its first token"
    return api.ContinuationScore(
        logprob=math.fsum(one.logprob for one in told),
        tokens=told,
        is_greedy=all(one.rank == 1 for one in told),
    )
