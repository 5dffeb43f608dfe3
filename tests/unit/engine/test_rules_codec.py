"""Rules travel to the workers unread, and what a worker would refuse is refused here."""

import struct
from typing import Any

import numpy as np
import pytest

from octavo.internal.v1 import engine_pb2 as engine
from octavo.internal.v1 import step_pb2 as step
from scheduler_svc.core.news import OutputSoFar, TokenRows
from scheduler_svc.core.plan import SlotStart
from scheduler_svc.core.records import Pooling, PromptRecords, RecordWishes
from scheduler_svc.core.refusals import InvalidField
from scheduler_svc.engine.news_codec import OwnerNews, encode_missed, encode_news, split_rows
from scheduler_svc.engine.request_codec import decode_submit
from scheduler_svc.engine.rules_codec import decode_sampling, decode_wishes, encode_sampling
from scheduler_svc.engine.step_codec import _encode_start


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


FULL = engine.RequestSampling(
    temperature=0.5,
    top_k=3,
    top_p=0.25,
    min_p=0.125,
    seed=9,
    repetition_penalty=1.5,
    frequency_penalty=-1,
    presence_penalty=2,
    logit_bias_ids=ints(4, 7),
    logit_bias_values=struct.pack("<2f", 1, -1),
    allowed_token_ids=ints(1, 4, 7, 90),
    bad_sequence_tokens=ints(4, 5, 6),
    bad_sequence_lengths=ints(1, 2),
    has_logprobs=True,
    num_top_logprobs=3,
    logprob_token_ids=ints(8, 2),
)


def test_both_messages_have_the_same_fields_under_the_same_numbers() -> None:
    def fields(descriptor: Any) -> dict[str, tuple[int, int, bool]]:
        return {f.name: (f.number, f.type, f.is_repeated) for f in descriptor.fields}

    assert fields(engine.RequestSampling.DESCRIPTOR) == fields(step.Sampling.DESCRIPTOR)


def test_rules_reach_a_slots_start_and_come_back_for_an_attach() -> None:
    sampling = decode_sampling(FULL)
    assert sampling.needs_history
    assert sampling.largest_id == 90
    assert encode_sampling(sampling) == FULL
    start = SlotStart(
        slot=1,
        generation=2,
        num_prompt_tokens=3,
        sampling=sampling,
        stop_token_ids=(),
        min_position=3,
        history=ints(1, 2, 3),
        prompt_records_from=2,
        num_prompt_top=5,
        pooling=Pooling.MEAN,
    )
    out = step.SlotStart()
    _encode_start(start, out)
    assert out.sampling.SerializeToString() == FULL.SerializeToString()
    assert (out.history, out.prompt_records_from) == (ints(1, 2, 3), 2)
    assert (out.num_prompt_top_logprobs, out.pooling) == (5, step.SLOT_POOLING_MEAN)


@pytest.mark.parametrize(
    ("rules", "needs"),
    [
        ({}, False),
        ({"repetition_penalty": 1.0}, False),
        ({"repetition_penalty": 1.25}, True),
        ({"presence_penalty": -0.5}, True),
        ({"bad_sequence_tokens": ints(4), "bad_sequence_lengths": ints(1)}, False),
        ({"bad_sequence_tokens": ints(4, 5), "bad_sequence_lengths": ints(2)}, True),
        ({"allowed_token_ids": ints(4), "has_logprobs": True}, False),
    ],
)
def test_history_is_sent_only_where_it_is_read(rules: dict[str, Any], needs: bool) -> None:  # noqa: FBT001
    assert decode_sampling(engine.RequestSampling(top_p=1, **rules)).needs_history is needs


@pytest.mark.parametrize(
    "rules",
    [
        {"logit_bias_ids": b"abc"},
        {"logit_bias_ids": ints(1)},
        {"logit_bias_ids": ints(2, 1), "logit_bias_values": struct.pack("<2f", 0, 0)},
        {"logit_bias_ids": ints(1), "logit_bias_values": struct.pack("<f", float("nan"))},
        {"allowed_token_ids": ints(5, 5)},
        {"allowed_token_ids": ints(-1)},
        {"bad_sequence_tokens": ints(1, 2), "bad_sequence_lengths": ints(1)},
        {"bad_sequence_tokens": ints(1), "bad_sequence_lengths": ints(1, 0)},
        {"repetition_penalty": -1},
        {"frequency_penalty": float("inf")},
    ],
)
def test_rules_that_make_no_sense_are_refused(rules: dict[str, Any]) -> None:
    with pytest.raises(InvalidField):
        decode_sampling(engine.RequestSampling(**rules))


def test_wishes_say_how_many_words_a_record_has() -> None:
    submit = engine.Submit(
        sampling=FULL,
        prompt_tokens=ints(1, 2),
        prompt_records_from=1,
        num_prompt_top_logprobs=2,
        prompt_records=b"12345678" * 3,
        resume=[engine.ResumedSequence(tokens=ints(1), records=b"x" * 40, stop_token_id=-1)],
    )
    assert decode_wishes(submit) == RecordWishes(token_words=10, prompt_from=1, num_prompt_top=2)
    new = decode_submit(submit, owner=1, now=0.0)
    assert new.prompt_records == b"12345678" * 3
    assert new.resume[0].records == b"x" * 40
    pooled = engine.Submit(pooling=engine.REQUEST_POOLING_LAST)
    assert decode_wishes(pooled).pooling is Pooling.LAST


def test_each_owner_gets_the_records_of_its_rows() -> None:
    column = np.array([1, 2, 1], np.int32)
    rows = TokenRows(
        owners=column,
        numbers=np.array([4, 5, 6], np.int32),
        output_indexes=np.zeros(3, np.int32),
        first_token_indexes=np.zeros(3, np.int32),
        tokens=np.array([7, 8, 9], np.int32),
        records=(b"", b"bbbb", b"ccccCCCC"),
    )
    parts = dict(split_rows(rows))
    stretch = PromptRecords(owner=1, number=6, first_position=3, records=b"pppp")
    first = encode_news(OwnerNews(rows=parts[1], prompt_records=[stretch])).deliver
    assert (first.records, first.record_words) == (b"ccccCCCC", ints(0, 2))
    told = first.prompt_records[0]
    assert (told.number, told.first_position, told.records) == (6, 3, b"pppp")
    second = encode_news(OwnerNews(rows=parts[2])).deliver
    assert (second.records, second.record_words) == (b"bbbb", ints(1))


def test_what_was_missed_comes_with_its_records() -> None:
    output = OutputSoFar(tokens=np.array([3, 4], np.int32), end=None, records=b"aaaabbbb")
    none = OutputSoFar(tokens=np.array([5], np.int32), end=None)
    out = encode_missed([(1, 0, 6, output), (2, 0, 0, none)], OwnerNews()).deliver
    assert (out.records, out.record_words) == (b"aaaabbbb", ints(2, 0))
