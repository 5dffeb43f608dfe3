"""Parses requests without a service. Knows no core."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future
from typing import Any

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.errors import InvalidRequest
from scheduler_svc.frontend.limits import RequestLimits
from scheduler_svc.frontend.model import ServedModel
from scheduler_svc.frontend.parse import RequestParser
from scheduler_svc.frontend.prompt import PromptEncoder
from scheduler_svc.frontend.request import ParsedRequest

LIMITS = RequestLimits(
    max_sequence_tokens=200,
    vocab_size=288,
    max_outputs=16,
    max_keep_for_s=600.0,
    max_request_bytes=1_000_000,
)


class SameThread(Executor):
    """Runs what it is given at once."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - goes where a thread's would
            future.set_exception(error)
        return future


def parse(
    model: ServedModel,
    generation: api.Generation | None,
    *,
    resume: api.Resume | None = None,
    limits: RequestLimits = LIMITS,
) -> ParsedRequest:
    """The parsed request; raises what the parser raises."""
    parser = RequestParser(
        model, PromptEncoder(model, executor=SameThread()), limits=lambda: limits
    )
    return asyncio.run(parser.parse(generation, resume=resume))


def violations_of(
    model: ServedModel, generation: api.Generation | None, *, resume: api.Resume | None = None
) -> dict[str, str]:
    """Rules broken, by field."""
    try:
        parse(model, generation, resume=resume)
    except InvalidRequest as error:
        return {violation.field: violation.rule for violation in error.violations}
    return {}
