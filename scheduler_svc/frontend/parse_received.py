"""What a caller received before its stream broke: Resume, checked. Knows nothing of text."""

from array import array
from collections.abc import Sequence

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.finish_reasons import ENGINE_REASON
from scheduler_svc.frontend.limits import RequestLimits
from scheduler_svc.frontend.output_record import NO_TOKEN
from scheduler_svc.frontend.request import ReceivedEnd, ReceivedOutput
from scheduler_svc.frontend.violations import Violations

_OLDEST_MS = 2**53


def parse_received(
    resume: api.Resume | None,
    *,
    num_outputs: int,
    num_prompt_tokens: int,
    limits: RequestLimits,
    violations: Violations,
) -> tuple[ReceivedOutput, ...]:
    """What was received, by output; empty when nothing is resumed."""
    if resume is None:
        return ()
    if len(resume.outputs) != num_outputs:
        violations.add(
            "resume.outputs",
            f"must have one entry for each of {num_outputs} outputs, has {len(resume.outputs)}",
        )
        return ()
    most = limits.max_sequence_tokens - num_prompt_tokens
    return tuple(
        ReceivedOutput(
            token_ids=_token_ids(
                output.token_ids,
                field=f"resume.outputs[{index}].token_ids",
                most=most,
                limits=limits,
                violations=violations,
            ),
            end=_end(output, field=f"resume.outputs[{index}].finish", violations=violations),
        )
        for index, output in enumerate(resume.outputs)
    )


def parse_age_ms(resume: api.Resume | None, *, violations: Violations) -> int:
    """Milliseconds since the request was first sent."""
    age_ms = resume.age_ms if resume is not None else 0
    if age_ms < 0:
        violations.add("resume.age_ms", f"must be at least 0, got {age_ms}")
    return min(max(0, age_ms), _OLDEST_MS)


def _token_ids(
    ids: Sequence[int], *, field: str, most: int, limits: RequestLimits, violations: Violations
) -> "array[int]":
    if len(ids) > most:
        violations.add(
            field,
            f"has {len(ids)} tokens, with the prompt more than the limit of"
            f" {limits.max_sequence_tokens} tokens",
        )
        return array("i")
    return array("i", violations.token_ids(field, ids, vocab_size=limits.vocab_size))


def _end(output: api.ResumedOutput, *, field: str, violations: Violations) -> ReceivedEnd | None:
    if not output.HasField("finish"):
        return None
    finish = output.finish
    reason = ENGINE_REASON.get(finish.reason)
    if reason is None:
        violations.add(f"{field}.reason", "must be one of the finish reasons that are sent")
        return None
    stop_token_id = finish.stop_token_id if finish.HasField("stop_token_id") else NO_TOKEN
    is_stop_string = finish.reason == api.FINISH_REASON_STOP_STRING
    return ReceivedEnd(
        reason=reason,
        stop_token_id=stop_token_id,
        message=finish.stop_string if is_stop_string else finish.message,
    )
