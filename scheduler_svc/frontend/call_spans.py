"""What a call's span says, told once at its end: its phases, counts and reason. Never any text.

Counts and reasons have the names of OpenTelemetry's conventions for generative AI where those have
one. Exports nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_svc.frontend.call import Call
from scheduler_svc.frontend.finish_reasons import LOG_WORD
from scheduler_svc.frontend.generation_stream import GenerationStream
from scheduler_svc.frontend.span import Phase

_MAX_ID_CHARACTERS = 128  # longer ones are refused, but told all the same


def end_span(call: Call, *, now: float) -> None:
    """Ends the call's span, if it has one."""
    if call.span is None:
        return
    code_number, _ = call.code.value
    call.span.end(
        code=call.code.name,
        code_number=code_number,
        reason=call.reason,
        attributes=attributes_of(call),
        phases=phases_of(call, now=now),
        now=now,
    )


def attributes_of(call: Call) -> dict[str, str | int | float | Sequence[str]]:
    """Facts of the whole call."""
    attributes: dict[str, str | int | float | Sequence[str]] = {}
    if call.request_id:
        attributes["octavo.request_id"] = call.request_id[:_MAX_ID_CHARACTERS]
    stream = call.stream
    if stream is None:
        return attributes
    record, usage = stream.record, stream.usage()
    attributes |= {
        "octavo.tenant": record.submit.tenant,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": stream.model,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.response.finish_reasons": [LOG_WORD[end.reason] for end in stream.finishes],
        "octavo.num_continued": record.num_core_restarts + call.is_continuation,
        "octavo.num_preemptions": sum(
            output.end.num_preemptions for output in record.outputs if output.end is not None
        ),
    }
    return attributes


def phases_of(call: Call, *, now: float) -> list[Phase]:
    """Where the time of the call went, in order; what it never reached is left out."""
    phases = []
    if call.parsed_at is not None:
        phases.append(Phase("tokenize", call.arrived_at, call.parsed_at))
    if call.stream is not None:
        phases += _stream_phases(call, call.stream, now=now)
    return phases


def _stream_phases(call: Call, stream: GenerationStream, *, now: float) -> list[Phase]:
    record, pace = stream.record, call.pace
    first_at = None if pace is None else pace.first_at
    phases = []
    if not call.is_continuation:  # a request that goes on has waited and begun before this call
        upto = now if first_at is None else first_at
        began_at = upto if record.queued_s is None else min(upto, record.began_at + record.queued_s)
        phases.append(Phase("queue", record.began_at, began_at))
        if record.queued_s is not None:
            cached = {"octavo.num_cached_tokens": record.num_cached_tokens or 0}
            phases.append(Phase("prefill", began_at, upto, cached))
    if pace is not None and first_at is not None and pace.last_at is not None:
        tokens = {"octavo.num_tokens": stream.num_streamed}
        phases.append(Phase("decode", first_at, pace.last_at, tokens))
    text = stream.text_time
    if text is not None and text.begun_at is not None:
        work = {"octavo.busy_s": text.busy_s}  # it works now and then, whenever tokens come
        phases.append(Phase("detokenize", text.begun_at, text.ended_at, work))
    return phases
