"""Tokenize and Detokenize: text and ids without a model. Knows no core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.limits import RequestLimits
from scheduler_svc.frontend.model import ServedModel
from scheduler_svc.frontend.prompt import PromptEncoder
from scheduler_svc.frontend.violations import Violations

_MAX_INLINE_IDS = 4096


class Texts:
    """Answers questions about text; raises InvalidRequest."""

    def __init__(
        self,
        model: ServedModel,
        prompts: PromptEncoder,
        *,
        limits: Callable[[], RequestLimits],
        executor: Executor,
    ) -> None:
        self._model = model
        self._prompts = prompts
        self._limits = limits
        self._executor = executor

    async def tokenize(self, request: api.TokenizeRequest) -> api.TokenizeResponse:
        """The ids the model would see."""
        violations = Violations()
        encoded = await self._prompts.encode(
            request.prompt, field="prompt", limits=self._limits(), violations=violations
        )
        violations.raise_if_any()
        return api.TokenizeResponse(token_ids=encoded.token_ids, text=encoded.text)

    async def detokenize(self, request: api.DetokenizeRequest) -> api.DetokenizeResponse:
        """The ids' text."""
        if len(request.token_ids) <= _MAX_INLINE_IDS:
            return self._detokenize(request)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._detokenize, request)

    def _detokenize(self, request: api.DetokenizeRequest) -> api.DetokenizeResponse:
        """Runs in a thread for long lists: touches nothing that changes."""
        violations = Violations()
        violations.token_ids("token_ids", request.token_ids, vocab_size=self._limits().vocab_size)
        violations.raise_if_any()
        skips = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        text = self._model.tokenizer.decode(request.token_ids, skip_special_tokens=skips)
        return api.DetokenizeResponse(text=text)
