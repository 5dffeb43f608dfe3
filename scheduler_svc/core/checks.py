"""What a new request must satisfy, and the record made of it. Knows no other request."""

import numpy as np
import numpy.typing as npt

from scheduler_svc.core.limits import Policy, WorkerLimits
from scheduler_svc.core.news import NO_OWNER
from scheduler_svc.core.records import WORD_BYTES
from scheduler_svc.core.refusals import InvalidField, PromptTooLong
from scheduler_svc.core.request import NewRequest, Request, ResumedOutput
from scheduler_svc.core.sequence import Sequence

_PRIORITIES = range(-8, 9)
# Beyond these a tenant would in effect be alone, or never served.
_LEAST_WEIGHT, _MOST_WEIGHT = 0.01, 100.0


def effective_max_tokens(new: NewRequest, limits: WorkerLimits) -> int:
    """Most tokens of each output: what was asked for, or what fits. Raises PromptTooLong."""
    room = limits.max_sequence_tokens - len(new.prompt)
    if room < 1:
        most = limits.max_sequence_tokens - 1
        raise PromptTooLong(num_tokens=len(new.prompt), limit=most)
    return room if new.max_tokens is None else min(new.max_tokens, room)


def check(new: NewRequest, limits: WorkerLimits, policy: Policy) -> None:
    """Raises InvalidField for the first field that is out of range."""
    _check_tokens("prompt", new.prompt, limits)
    _check_tokens("eos_token_ids", np.array(new.eos_token_ids, np.int64), limits)
    _check_tokens("stop_token_ids", np.array(new.stop_token_ids, np.int64), limits)
    check_resume(new, limits)
    most = policy.max_outputs
    checks = (
        (len(new.prompt) > 0, "prompt", "must have at least one token"),
        (1 <= new.num_outputs <= most, "num_outputs", f"must be from 1 to {most}"),
        (new.max_tokens is None or new.max_tokens > 0, "max_tokens", "must be at least 1"),
        (new.min_tokens >= 0, "min_tokens", "must not be negative"),
        (
            new.max_tokens is None or new.min_tokens <= new.max_tokens,
            "min_tokens",
            "must not be greater than max_tokens",
        ),
        (new.priority in _PRIORITIES, "priority", "must be from -8 to 8"),
        (
            new.sampling.largest_id < limits.vocab_size,
            "sampling",
            f"must name ids below {limits.vocab_size}",
        ),
        *_record_checks(new),
        (0 <= new.sampling.seed < 2**64, "seed", "must be an unsigned 64-bit number"),
        (new.keep_for_s >= 0, "keep_for_s", "must not be negative"),
        (
            _LEAST_WEIGHT <= new.tenant_weight <= _MOST_WEIGHT,
            "tenant_weight",
            f"must be from {_LEAST_WEIGHT:g} to {_MOST_WEIGHT:g}",
        ),
    )
    for holds, field, rule in checks:
        if not holds:
            raise InvalidField(field, rule)


def check_resume(new: NewRequest, limits: WorkerLimits) -> None:
    """Raises InvalidField unless the resumed outputs fit the request."""
    if new.resume and len(new.resume) != new.num_outputs:
        rule = f"must be empty or have {new.num_outputs} entries, got {len(new.resume)}"
        raise InvalidField("resume", rule)
    for output in new.resume:
        _check_tokens("resume", output.tokens, limits)
        _check_resumed_records(new, output)


def make_request(
    new: NewRequest,
    *,
    order: int,
    tenant_index: int,
    max_tokens: int,
    policy: Policy,
    now: float,
) -> Request:
    """The record of an accepted request, with a sequence for each output."""
    is_detached = new.is_detached
    request = Request(
        new=new,
        order=order,
        tenant_index=tenant_index,
        max_tokens=max_tokens,
        keep_for_s=min(new.keep_for_s, policy.max_keep_for_s),
        reads_cache=new.reads_cache and policy.use_prefix_cache,
        stores_cache=new.stores_cache and policy.use_prefix_cache,
        arrived_at=now,
        owner=NO_OWNER if is_detached else new.owner,
        number=0 if is_detached else new.number,
        deadline=new.deadline,
        queue_class=new.priority,
        in_class_since=now,
        queue_until=_queue_until(new, policy, now),
        num_live=new.num_outputs,
        prompt_records=bytearray(new.prompt_records),
    )
    for output_index in range(new.num_outputs):
        resumed = new.resume[output_index].tokens if new.resume else np.empty(0, np.int32)
        request.sequences.append(
            Sequence(
                request=request,
                output_index=output_index,
                limit=len(new.prompt) + max_tokens,
                tokens=known_tokens(new.prompt, resumed),
                records=known_records(new, new.resume[output_index]) if new.resume else bytearray(),
                grammar=None if new.grammar is None else new.grammar.begin(),
                num_deaths=new.num_core_deaths,
                num_tokens_at_death=len(new.prompt) + len(resumed),
            )
        )
    return request


def _record_checks(new: NewRequest) -> tuple[tuple[bool, str, str], ...]:
    wishes, num_prompt = new.records, len(new.prompt)
    most_bytes = WORD_BYTES * wishes.prompt_words * max(num_prompt - wishes.prompt_from, 0)
    return (
        (
            wishes.prompt_from < max(num_prompt, 1),
            "prompt_records_from",
            f"must be within the prompt of {num_prompt} tokens",
        ),
        (
            len(new.prompt_records) % (WORD_BYTES * wishes.prompt_words) == 0
            and len(new.prompt_records) <= (most_bytes if wishes.prompt_from else 0),
            "prompt_records",
            "must be whole records of the prompt",
        ),
        (
            wishes.pooling is None or (new.num_outputs == 1 and new.max_tokens == 1),
            "pooling",
            "goes with one output of one token",
        ),
    )


def _check_resumed_records(new: NewRequest, output: ResumedOutput) -> None:
    wanted = len(output.tokens) * WORD_BYTES * new.records.token_words
    is_known = new.records.pooling is not None or len(output.records) == wanted
    if output.records and not is_known:
        raise InvalidField("resume.records", f"must be {wanted} bytes, got {len(output.records)}")


def _queue_until(new: NewRequest, policy: Policy, now: float) -> float | None:
    # What was accepted before has tokens, or has waited already: a restart shall not end it.
    return now + policy.max_queue_s if policy.max_queue_s and not new.was_accepted else None


def known_tokens(prompt: npt.NDArray[np.int32], generated: npt.NDArray[np.int32]) -> bytearray:
    """A sequence's tokens as int32 bytes."""
    return bytearray(prompt.astype("<i4").tobytes() + generated.astype("<i4").tobytes())


def known_records(new: NewRequest, resumed: ResumedOutput) -> bytearray:
    """Records of an output's resumed tokens; words of 0 where they are not known."""
    num_bytes = len(resumed.tokens) * WORD_BYTES * new.records.token_words
    return bytearray(resumed.records or num_bytes)


def _check_tokens(field: str, tokens: npt.NDArray[np.integer], limits: WorkerLimits) -> None:
    if tokens.size and not (tokens.min() >= 0 and tokens.max() < limits.vocab_size):
        raise InvalidField(field, f"must hold ids from 0 to {limits.vocab_size - 1}")
