"""A valid request in the core's words. Knows nothing of connections."""

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.frontend.record import RequestRecord
from scheduler_svc.frontend.request import ParsedRequest
from scheduler_svc.frontend.told_tokens import output_reader
from scheduler_svc.security.key_records import Caller


def new_record(
    request: ParsedRequest, *, caller: Caller, now: float, deadline_at: float | None
) -> RequestRecord:
    """The request's record, not submitted yet, with what its caller received before."""
    submit = engine.Submit(
        tenant=caller.tenant,
        tenant_weight=caller.weight,
        tenant_max_requests=caller.max_requests,
        request_id=request.request_id,
        blob=request.blob,
        body_digest=request.body_digest,
        prompt_tokens=request.prompt_token_ids.tobytes(),
        num_outputs=request.num_outputs,
        max_tokens=request.max_tokens,
        min_tokens=request.min_tokens,
        eos_token_ids=request.eos_token_ids,
        stop_token_ids=request.stop_token_ids,
        sampling=engine.RequestSampling(
            temperature=request.sampling.temperature,
            top_k=request.sampling.top_k,
            top_p=request.sampling.top_p,
            min_p=request.sampling.min_p,
            seed=request.sampling.seed,
        ),
        priority=request.priority,
        time_limit_ms=_time_left_ms(request),
        keep_for_ms=request.keep_for_ms,
        skip_cache_read=request.skip_cache_read,
        skip_cache_store=request.skip_cache_store,
        age_ms=request.age_ms,
    )
    request.rules.write(submit.sampling)
    request.records.write(submit, num_prompt_tokens=len(request.prompt_token_ids))
    if request.form is not None:
        submit.grammar.CopyFrom(request.form.grammar)
    record = RequestRecord(submit, now=now, deadline_at=deadline_at)
    record.form_field = "" if request.form is None else request.form.field
    reader = output_reader(submit)
    for index, received in enumerate(request.received):
        output = record.outputs[index]
        output.tokens.extend(received.token_ids)
        if reader is not None:
            # nobody here knows how likely they were
            output.records.extend(bytes(reader.num_bytes * len(received.token_ids)))
        if received.end is None:
            continue
        num_tokens = len(received.token_ids)
        output.end = engine.OutputEnd(
            output_index=index,
            num_tokens=num_tokens,
            reason=received.end.reason,
            stop_token_id=received.end.stop_token_id,
            message=received.end.message,
        )
        output.finish = engine.Finish(
            output_index=index,
            num_tokens=num_tokens,
            reason=received.end.reason,
            stop_string=received.end.message,
        )
    return record


def _time_left_ms(request: ParsedRequest) -> int:
    """The time limit, less what has passed of it elsewhere; 0: none."""
    limit_ms = request.time_limit_ms
    return max(1, limit_ms - request.age_ms) if limit_ms else 0
