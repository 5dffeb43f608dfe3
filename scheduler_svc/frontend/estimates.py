"""What a generation would meet: from the public question to the core's, and back. Keeps nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.errors import Unavailable
from scheduler_svc.frontend.ledger import RequestLedger
from scheduler_svc.frontend.limits import RequestLimits
from scheduler_svc.frontend.parse import parse_priority, within
from scheduler_svc.frontend.prompt import PromptEncoder, no_room_rule
from scheduler_svc.frontend.violations import Violations
from scheduler_svc.security.key_records import Caller

ESTIMATE_LIMIT_S = 10.0


class Estimates:
    """Answers; raises InvalidRequest, and Unavailable when the core does not answer."""

    def __init__(
        self,
        prompts: PromptEncoder,
        ledger: RequestLedger,
        *,
        limits: Callable[[], RequestLimits],
    ) -> None:
        self._prompts = prompts
        self._ledger = ledger
        self._limits = limits

    async def estimate(self, request: api.EstimateRequest, caller: Caller) -> api.EstimateResponse:
        """What it would meet."""
        question, num_tokens = await self._question(request, caller)
        try:
            async with asyncio.timeout(ESTIMATE_LIMIT_S):
                answer = await self._ledger.estimate(question)
        except TimeoutError as error:
            text = f"the scheduler did not answer for {ESTIMATE_LIMIT_S:.0f} s"
            raise Unavailable(text, reason="CORE_UNREACHABLE", retry_after_ms=1000) from error
        is_founded = answer.HasField("first_token_us")
        return api.EstimateResponse(
            prompt_tokens=num_tokens,
            cached_tokens=answer.num_cached_tokens,
            num_requests_ahead=answer.num_requests_ahead,
            num_tokens_ahead=answer.num_tokens_ahead,
            predicted_ttft_s=answer.first_token_us / 1e6 if is_founded else None,
        )

    async def _question(
        self, request: api.EstimateRequest, caller: Caller
    ) -> tuple[engine.Estimate, int]:
        violations, limits = Violations(), self._limits()
        priority = parse_priority(
            request.scheduling, field="scheduling.priority", violations=violations
        )
        encoded = await self._prompts.encode(
            request.prompt, field="prompt", limits=limits, violations=violations
        )
        num_tokens = len(encoded.token_ids)
        if num_tokens >= limits.max_sequence_tokens:
            violations.add("prompt", no_room_rule(num_tokens, limits))
        violations.raise_if_any()
        question = engine.Estimate(
            tenant=caller.tenant,
            tenant_weight=caller.weight,
            prompt_tokens=encoded.token_ids.tobytes(),
            priority=within((caller.most_urgent, caller.least_urgent), priority),
            skip_cache_read=request.scheduling.skip_cache_read,
        )
        return question, num_tokens
