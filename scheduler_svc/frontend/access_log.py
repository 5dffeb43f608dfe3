"""One log line for each call, when it has ended: who, how much, how fast, how it ended.

Counts, times and words of our own; of what clients sent only the request id, cut to its limit.
"""

from __future__ import annotations

import logging
from typing import Any

from scheduler_svc.frontend.call import Call
from scheduler_svc.frontend.finish_reasons import LOG_WORD
from scheduler_svc.frontend.generation_stream import GenerationStream

_MAX_ID_CHARACTERS = 128  # longer ones are refused, but logged all the same
_LOG = logging.getLogger(__name__)


def write_access_line(call: Call, *, now: float) -> None:
    """Logs the call's end; accepted requests with what they cost."""
    if not _LOG.isEnabledFor(logging.INFO):
        return
    fields: dict[str, Any] = {"method": call.method}
    if call.request_id:
        fields["request_id"] = call.request_id[:_MAX_ID_CHARACTERS]
    if call.stream is not None:
        fields |= _request_fields(call, call.stream)
    if call.span is not None:
        fields["trace_id"] = call.span.trace_id
    fields["total_ms"] = _milliseconds(now - call.arrived_at)
    fields["code"] = call.code.name
    if call.reason:
        fields["reason"] = call.reason
    _LOG.info("call ended", extra=fields)


def _request_fields(call: Call, stream: GenerationStream) -> dict[str, Any]:
    record, usage = stream.record, stream.usage()
    fields: dict[str, Any] = {
        "tenant": record.submit.tenant,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
    }
    if call.pace is not None and call.pace.first_token_s is not None:
        fields["ttft_ms"] = _milliseconds(call.pace.first_token_s)
    if stream.finishes:
        fields["finish_reasons"] = ",".join(LOG_WORD[finish.reason] for finish in stream.finishes)
    fields["num_continued"] = record.num_core_restarts + call.is_continuation
    return fields


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 1)
