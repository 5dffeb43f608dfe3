"""From the public message to a valid request, or to every rule it breaks. Knows no core.

Durations become whole milliseconds, rounded up; ranges are those of protos/octavo/v1.
"""

import re
import uuid
from collections.abc import Callable

import xxhash

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.blob import text_rules, write_blob
from scheduler_svc.frontend.errors import ModelUnknown
from scheduler_svc.frontend.limits import RequestLimits
from scheduler_svc.frontend.model import ServedModel
from scheduler_svc.frontend.parse_received import parse_age_ms, parse_received
from scheduler_svc.frontend.parse_rules import check_choice_is_left, parse_records, parse_rules
from scheduler_svc.frontend.parse_sampling import parse_num_outputs, parse_sampling
from scheduler_svc.frontend.parse_stopping import (
    check_output,
    parse_stopping,
    whole_milliseconds,
)
from scheduler_svc.frontend.parse_structured import parse_structured
from scheduler_svc.frontend.prompt import EncodedPrompt, PromptEncoder, no_room_rule
from scheduler_svc.frontend.request import ParsedRequest
from scheduler_svc.frontend.text.reasoning import opens_reasoning
from scheduler_svc.frontend.violations import Violations

_LONGEST_KEEP_S = 366.0 * 86_400
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_REQUEST_ID_RULE = "must be 1 to 128 characters of letters, digits, '.', '_', ':' and '-'"
_LOWEST_PRIORITY = 8
# A mark that opens the reasoning is among so many last tokens of a prompt, or it does not open it.
_REASONING_TAIL = 16


class RequestParser:
    """Parses generations for one model."""

    def __init__(
        self, model: ServedModel, prompts: PromptEncoder, *, limits: Callable[[], RequestLimits]
    ) -> None:
        self._model = model
        self._prompts = prompts
        self._limits = limits

    async def parse(
        self,
        generation: api.Generation | None,
        *,
        resume: api.Resume | None = None,
        priorities: tuple[int, int] = (-_LOWEST_PRIORITY, _LOWEST_PRIORITY),
    ) -> ParsedRequest:
        """The valid request. Raises InvalidRequest with all violations, or ModelUnknown.

        `priorities` are the most and the least urgent one that the caller may have.
        """
        violations = Violations()
        if generation is None:
            violations.add("generation", "is required")
            violations.raise_if_any()
            generation = api.Generation()
        if generation.model and generation.model != self._model.name:
            raise ModelUnknown(asked=generation.model, served=self._model.name)
        return await self._parse(generation, resume, priorities, violations)

    async def _parse(
        self,
        generation: api.Generation,
        resume: api.Resume | None,
        priorities: tuple[int, int],
        violations: Violations,
    ) -> ParsedRequest:
        limits = self._limits()
        request_id = generation.request_id or uuid.uuid4().hex
        check_request_id(request_id, field="generation.request_id", violations=violations)
        sampling = parse_sampling(
            generation.sampling,
            resume,
            defaults=self._model.default_sampling,
            limits=limits,
            violations=violations,
        )
        rules = await parse_rules(
            generation.sampling,
            defaults=self._model.default_sampling,
            tokenizer=self._model.tokenizer,
            limits=limits,
            violations=violations,
        )
        records = parse_records(generation.output, limits=limits, violations=violations)
        num_outputs = parse_num_outputs(generation.sampling, limits=limits, violations=violations)
        stopping = parse_stopping(generation.stopping, limits=limits, violations=violations)
        check_output(generation.output, violations=violations)
        priority = parse_priority(
            generation.scheduling, field="generation.scheduling.priority", violations=violations
        )
        keep_for_s = _keep_for_s(generation.scheduling, violations)
        prompt = await self._encoded(generation.prompt, limits, violations)
        received = parse_received(
            resume,
            num_outputs=num_outputs,
            num_prompt_tokens=len(prompt.token_ids),
            limits=limits,
            violations=violations,
        )
        age_ms = parse_age_ms(resume, violations=violations)
        eos_token_ids = () if generation.stopping.ignore_eos else self._eos_token_ids(limits)
        check_choice_is_left(
            rules,
            end_token_ids=(*eos_token_ids, *stopping.stop_token_ids),
            min_tokens=stopping.min_tokens,
            violations=violations,
        )
        form = await parse_structured(
            generation,
            is_served=limits.has_structured_output,
            tokenizer=self._model.tokenizer,
            prompt_token_ids=prompt.token_ids,
            end_token_ids=(*eos_token_ids, *stopping.stop_token_ids),
            violations=violations,
        )
        violations.raise_if_any()

        starts_in_reasoning = prompt.leaves_reasoning_open or self._opens_reasoning(prompt)
        warnings = (
            *prompt.warnings,
            *_keep_for_warnings(keep_for_s, limits),
            *_priority_warnings(generation.scheduling, priorities),
        )
        return ParsedRequest(
            request_id=request_id,
            prompt_token_ids=prompt.token_ids,
            sampling=sampling,
            rules=rules,
            records=records,
            form=form,
            num_outputs=num_outputs,
            max_tokens=stopping.max_tokens,
            min_tokens=stopping.min_tokens,
            eos_token_ids=eos_token_ids,
            stop_token_ids=stopping.stop_token_ids,
            text_rules=text_rules(
                generation,
                end_token_ids=frozenset((*eos_token_ids, *stopping.stop_token_ids)),
                starts_in_reasoning=starts_in_reasoning,
            ),
            priority=within(priorities, priority),
            time_limit_ms=stopping.time_limit_ms,
            keep_for_ms=whole_milliseconds(min(keep_for_s, limits.max_keep_for_s)),
            skip_cache_read=generation.scheduling.skip_cache_read,
            skip_cache_store=generation.scheduling.skip_cache_store,
            received=received,
            age_ms=age_ms,
            warnings=warnings,
            body_digest=body_digest(generation),
            blob=write_blob(
                generation,
                start=self._start_of(generation, prompt, warnings),
                starts_in_reasoning=starts_in_reasoning,
            ),
        )

    async def _encoded(
        self, prompt: api.Prompt, limits: RequestLimits, violations: Violations
    ) -> EncodedPrompt:
        encoded = await self._prompts.encode(
            prompt, field="generation.prompt", limits=limits, violations=violations
        )
        if len(encoded.token_ids) >= limits.max_sequence_tokens:
            rule = no_room_rule(len(encoded.token_ids), limits)
            violations.add("generation.prompt", rule)
        return encoded

    def _opens_reasoning(self, prompt: EncodedPrompt) -> bool:
        tail = prompt.token_ids[-_REASONING_TAIL:]
        return opens_reasoning(self._model.tokenizer.decode(tail, skip_special_tokens=False))

    def _start_of(
        self, generation: api.Generation, prompt: EncodedPrompt, warnings: tuple[str, ...]
    ) -> api.StreamStart:
        """What a stream says first, as far as it is known now."""
        start = api.StreamStart(warnings=warnings, num_truncated_tokens=prompt.num_truncated)
        if generation.output.echo:
            text = prompt.text
            if prompt.num_truncated or not text:
                decode = self._model.tokenizer.decode
                text = decode(prompt.token_ids, skip_special_tokens=False)
            start.prompt.text = text
        return start

    def _eos_token_ids(self, limits: RequestLimits) -> tuple[int, ...]:
        ids = self._model.tokenizer.eos_token_ids
        return tuple(sorted(one for one in ids if one < limits.vocab_size))


def check_request_id(request_id: str, *, field: str, violations: Violations) -> None:
    """Notes an id that cannot name a request."""
    if not _REQUEST_ID.fullmatch(request_id):
        violations.add(field, _REQUEST_ID_RULE)


def body_digest(generation: api.Generation) -> bytes:
    """What two requests of the same id must share to be the same request."""
    return xxhash.xxh3_128_digest(generation.SerializeToString(deterministic=True))


def parse_priority(scheduling: api.SchedulingParams, *, field: str, violations: Violations) -> int:
    """The class that is asked for."""
    return violations.integer(
        field, scheduling.priority, least=-_LOWEST_PRIORITY, most=_LOWEST_PRIORITY
    )


def within(priorities: tuple[int, int], priority: int) -> int:
    """The nearest class between the most and the least urgent one that a caller may have."""
    most_urgent, least_urgent = priorities
    return min(max(priority, most_urgent), least_urgent)


def _priority_warnings(
    scheduling: api.SchedulingParams, priorities: tuple[int, int]
) -> tuple[str, ...]:
    wanted = scheduling.priority
    used = within(priorities, wanted)
    if used == wanted or not scheduling.HasField("priority"):
        return ()
    return (f"generation.scheduling.priority: {used} for this API key, not {wanted}",)


def _keep_for_s(scheduling: api.SchedulingParams, violations: Violations) -> float:
    """How long the request is wanted without a reader, before the service's own limit."""
    return violations.number(
        "generation.scheduling.keep_for_s", scheduling.keep_for_s, least=0, most=_LONGEST_KEEP_S
    )


def _keep_for_warnings(wanted_s: float, limits: RequestLimits) -> tuple[str, ...]:
    if wanted_s <= limits.max_keep_for_s:
        return ()
    most_s = f"{limits.max_keep_for_s:g} s"
    return (f"generation.scheduling.keep_for_s: {most_s} at most, not {wanted_s:g} s",)
