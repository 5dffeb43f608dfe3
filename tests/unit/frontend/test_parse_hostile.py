"""Whatever a client sends: a valid request or an InvalidRequest, never anything else."""

from __future__ import annotations

import contextlib
import math
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.errors import InvalidRequest, ModelUnknown
from scheduler_svc.frontend.model import ServedModel
from scheduler_svc.frontend.request import ParsedRequest
from tests.fakes.hostile_messages import HostileMessages, make_sound
from tests.unit.frontend.parsing import LIMITS, parse

INT32 = st.one_of(
    st.sampled_from([0, -1, 1, 2, 287, 288, 2**31 - 1, -(2**31)]),
    st.integers(-(2**31), 2**31 - 1),
)
FLOAT = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1e-30, -1.0, math.nan, math.inf, -math.inf, 3.4e38]),
    st.floats(width=32),
)
TEXT: st.SearchStrategy[str] = st.one_of(
    st.sampled_from(["", " ", "\x00", "<|im_end|>", "x" * 250, "\ufffd", "👩‍👩‍👧"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
IDS = st.lists(INT32, max_size=5)
MAYBE_BOOL = st.one_of(st.none(), st.booleans())


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Set or unset."""
    return st.one_of(st.none(), strategy)


def message(kind: Any, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(fields).map(lambda values: kind(**values))


CHATS = message(
    api.Chat,
    messages=st.lists(message(api.ChatMessage, role=TEXT, content=TEXT), max_size=3),
    add_generation_prompt=MAYBE_BOOL,
    continue_final_message=MAYBE_BOOL,
    template_kwargs=maybe(
        st.dictionaries(TEXT, st.one_of(TEXT, st.floats(), st.booleans()), max_size=2)
    ),
)
PROMPTS = st.one_of(
    st.just(api.Prompt(text="hi")),
    st.just(api.Prompt()),
    TEXT.map(lambda text: api.Prompt(text=text)),
    IDS.map(lambda ids: api.Prompt(token_ids=api.TokenIds(ids=ids))),
    CHATS.map(lambda chat: api.Prompt(chat=chat)),
)
GENERATIONS = message(
    api.Generation,
    request_id=st.one_of(st.just(""), TEXT),
    model=st.sampled_from(["", "tiny", "other"]),
    prompt=PROMPTS,
    sampling=maybe(
        message(
            api.SamplingParams,
            temperature=maybe(FLOAT),
            top_k=maybe(INT32),
            top_p=maybe(FLOAT),
            min_p=maybe(FLOAT),
            seed=maybe(st.integers(0, 2**64 - 1)),
            n=maybe(INT32),
        )
    ),
    stopping=maybe(
        message(
            api.StoppingParams,
            max_tokens=maybe(INT32),
            min_tokens=maybe(INT32),
            stop=st.lists(TEXT, max_size=3),
            stop_token_ids=IDS,
            include_stop=MAYBE_BOOL,
            ignore_eos=MAYBE_BOOL,
            time_limit_s=maybe(FLOAT),
        )
    ),
    output=maybe(
        message(api.OutputParams, skip_special_tokens=MAYBE_BOOL, stream_interval=maybe(INT32))
    ),
    scheduling=maybe(message(api.SchedulingParams, priority=maybe(INT32), keep_for_s=maybe(FLOAT))),
)
RESUMES = message(
    api.Resume,
    outputs=st.lists(
        message(
            api.ResumedOutput,
            token_ids=IDS,
            finish=maybe(
                message(
                    api.Finish,
                    reason=st.sampled_from(list(api.FinishReason.values())),
                    stop_token_id=maybe(INT32),
                    num_tokens=INT32,
                )
            ),
        ),
        max_size=3,
    ),
    seed=maybe(st.integers(0, 2**64 - 1)),
    age_ms=st.integers(-(2**63), 2**63 - 1),
)


@given(generation=maybe(GENERATIONS), resume=maybe(RESUMES))
def test_a_request_is_valid_or_refused_with_reasons(
    model: ServedModel, generation: api.Generation | None, resume: api.Resume | None
) -> None:
    outcome = outcome_of(model, generation, resume)
    if isinstance(outcome, ParsedRequest):
        check_in_range(outcome)
    elif isinstance(outcome, InvalidRequest):
        assert all(one.field and one.rule for one in outcome.violations)
    else:
        assert generation is not None
        assert generation.model == "other"


def outcome_of(
    model: ServedModel, generation: api.Generation | None, resume: api.Resume | None
) -> ParsedRequest | InvalidRequest | ModelUnknown:
    try:
        return parse(model, generation, resume=resume)
    except (InvalidRequest, ModelUnknown) as error:
        return error


def check_in_range(parsed: ParsedRequest) -> None:
    """What the core and the workers rely on."""
    sampling = parsed.sampling
    assert sampling.temperature == 0 or 1e-5 <= sampling.temperature <= 100
    assert 0 <= sampling.top_k < LIMITS.vocab_size
    assert 0 <= sampling.top_p <= 1
    assert 0 <= sampling.min_p <= 1
    assert 0 <= sampling.seed < 2**64
    assert 1 <= parsed.num_outputs <= LIMITS.max_outputs
    assert 1 <= len(parsed.prompt_token_ids) < LIMITS.max_sequence_tokens
    assert 0 <= parsed.min_tokens <= (parsed.max_tokens or 2**31)
    assert all(0 <= i < LIMITS.vocab_size for i in (*parsed.stop_token_ids, *parsed.eos_token_ids))
    assert all(parsed.text_rules.stop_strings)
    assert -8 <= parsed.priority <= 8
    assert 0 <= parsed.keep_for_ms <= 1000 * LIMITS.max_keep_for_s
    assert 0 <= parsed.time_limit_ms <= 2**53
    assert 0 <= parsed.age_ms <= 2**53
    assert len(parsed.received) in (0, parsed.num_outputs)
    assert len(parsed.blob) < 2**20


@given(data=st.binary(max_size=300))
def test_random_bytes_that_are_a_message_are_handled(model: ServedModel, data: bytes) -> None:
    generation = api.Generation()
    with contextlib.suppress(Exception):
        generation.ParseFromString(data)
    with contextlib.suppress(InvalidRequest, ModelUnknown):
        check_in_range(parse(model, generation))


def test_random_messages_of_the_whole_contract_are_valid_or_refused_with_reasons(
    model: ServedModel,
) -> None:
    """Made from the descriptors: a new field is in them from its first day on."""
    hostile, draw = HostileMessages(0), random.Random(0)
    num_valid = 0
    for number in range(1500):
        generation = hostile.message(api.Generation.DESCRIPTOR)
        resume = hostile.message(api.Resume.DESCRIPTOR) if number % 3 == 0 else None
        assert isinstance(generation, api.Generation)
        assert resume is None or isinstance(resume, api.Resume)
        if number % 2:
            make_sound(generation, draw)
        outcome = outcome_of(model, generation, resume)
        if isinstance(outcome, ParsedRequest):
            check_in_range(outcome)
            num_valid += 1
        elif isinstance(outcome, InvalidRequest):
            assert all(one.field and one.rule for one in outcome.violations)
    assert 100 < num_valid < 1400
