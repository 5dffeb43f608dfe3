"""Records follow their tokens, are told once, and survive whatever sequences go through."""

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from scheduler_svc.core.news import Attached
from scheduler_svc.core.plan import BadResult
from scheduler_svc.core.records import Pooling, RecordWishes
from scheduler_svc.core.refusals import InvalidField
from scheduler_svc.core.request import EndReason, ResumedOutput
from tests.unit.core.recording_worker import (
    VECTOR,
    RecordingReplica,
    expected_prompt_records,
    expected_records,
)
from tests.unit.core.replica import limits, prompt_of

BOTH = RecordWishes(token_words=4, prompt_from=1, num_prompt_top=1)


@pytest.mark.parametrize("seed", range(6))
def test_records_survive_preemption_and_lost_workers(seed: int) -> None:
    random = Random(seed)
    replica = RecordingReplica(
        limits(num_blocks=14, max_num_seqs=4, max_num_batched_tokens=random.choice([5, 16])),
        max_prefill_chunk_tokens=random.choice([0, 3]),
        settles=False,
    )
    wishes = [
        BOTH,
        RecordWishes(token_words=2),
        RecordWishes(prompt_from=6, num_prompt_top=2),
        RecordWishes(),
    ]
    requests = [
        replica.add_recorded(
            prompt_of(random.randint(8, 20), first=random.choice([1, 2])),
            wishes=wish,
            max_tokens=14,
            num_outputs=random.choice([1, 2]),
            reads_cache=random.random() < 0.8,
        )
        for wish in wishes * 3
    ]
    for _ in range(40):
        replica.step()
        if random.random() < 0.1:
            replica.restart_epoch()
    replica.run()
    assert replica.core.counts().total_preemptions > 0
    for new in requests:
        for index in range(new.num_outputs):
            tokens = replica.tokens(new, index)
            assert len(tokens) == 14
            key = new.owner, new.number, index
            assert replica.records.get(key, b"") == expected_records(new, tokens)
        told = replica.prompt_records.get((new.owner, new.number), b"")
        wanted = expected_prompt_records(new) if new.records.prompt_from else b""
        assert told == wanted


def test_a_prompt_with_wanted_records_uses_the_cache_up_to_them() -> None:
    replica = RecordingReplica()
    replica.add(prompt_of(30))
    replica.run()
    scored = replica.add_recorded(prompt_of(30), wishes=RecordWishes(prompt_from=22))
    anew = replica.add_recorded(prompt_of(30), wishes=RecordWishes(prompt_from=1))
    replica.run()
    cached = {start.number: start.num_cached_tokens for start in replica.starts}
    assert cached[scored.number] == 20, "the position before the first record is computed"
    assert cached[anew.number] == 0


def test_who_attaches_gets_all_records() -> None:
    replica = RecordingReplica(settles=False)
    new = replica.add_recorded(wishes=BOTH, max_tokens=6, keep_for_s=60.0)
    for _ in range(4):
        replica.step()
    attached = replica.core.attach(
        tenant="tenant",
        request_id=new.request_id,
        owner=2,
        number=1,
        deadline=None,
        now=replica.now,
    )
    tokens = attached.outputs[0].tokens.tolist()
    assert 0 < len(tokens) < 6
    assert attached.outputs[0].records == expected_records(new, tokens)
    assert attached.prompt_records == expected_prompt_records(new)
    later = replica.core.output_so_far(owner=2, number=1, output_index=0, first_token_index=1)
    assert later.records == expected_records(new, tokens)[16:]
    part = replica.core.prompt_records_so_far(owner=2, number=1, first_position=3)
    assert part == expected_prompt_records(new)[2 * 16 :]


def test_a_resumed_request_keeps_its_records_and_computes_only_what_is_missing() -> None:
    first = RecordingReplica(settles=False)
    whole = first.add_recorded(wishes=BOTH, max_tokens=6)
    first.run()
    tokens = first.tokens(whole)
    second = RecordingReplica(settles=False)
    known = ResumedOutput(
        tokens=np.array(tokens[:2], np.int32), records=expected_records(whole, tokens[:2])
    )
    again = second.add_recorded(
        wishes=BOTH,
        max_tokens=6,
        keep_for_s=60.0,
        resume=(known,),
        prompt_records=expected_prompt_records(whole),
    )
    second.run()
    assert second.prompt_records == {}, "they were known"
    attached = second.core.attach(
        tenant="tenant",
        request_id=again.request_id,
        owner=2,
        number=1,
        deadline=None,
        now=second.now,
    )
    assert attached.outputs[0].tokens.tolist() == tokens
    assert attached.outputs[0].records == expected_records(whole, tokens)
    assert attached.prompt_records == expected_prompt_records(whole)


def test_records_of_tokens_from_elsewhere_are_zeros() -> None:
    replica = RecordingReplica(settles=False)
    known = ResumedOutput(tokens=np.array([5, 6], np.int32))
    new = replica.add_recorded(
        wishes=RecordWishes(token_words=2), max_tokens=4, keep_for_s=9.0, resume=(known,)
    )
    replica.run()
    answer = replica.core.submit(
        replica.new(request_id=new.request_id, records=new.records), replica.now
    )
    assert isinstance(answer, Attached)
    assert answer.outputs[0].records[:16] == bytes(16)
    assert answer.outputs[0].records[16:] != bytes(16)


def test_what_an_owner_cuts_loses_its_records() -> None:
    replica = RecordingReplica(settles=False)
    new = replica.add_recorded(wishes=RecordWishes(token_words=2), max_tokens=6, keep_for_s=60.0)
    replica.run()
    end = replica.reader(new).end
    assert end is not None
    replica.finish(end, num_tokens=2, reason=EndReason.STOP_STRING, message="x")
    attached = replica.core.attach(
        tenant="tenant",
        request_id=new.request_id,
        owner=2,
        number=1,
        deadline=None,
        now=replica.now,
    )
    assert len(attached.outputs[0].records) == 16
    kept = replica.core.counts().num_retained_tokens
    assert kept == len(new.prompt) + 2 + 4, "records count as the tokens they take the memory of"


def test_a_vector_comes_instead_of_tokens() -> None:
    replica = RecordingReplica()
    replica.add(prompt_of(20))
    replica.run()
    last = replica.add_recorded(
        prompt_of(20), wishes=RecordWishes(pooling=Pooling.LAST), max_tokens=1
    )
    mean = replica.add_recorded(
        prompt_of(20), wishes=RecordWishes(pooling=Pooling.MEAN), max_tokens=1
    )
    replica.run()
    assert replica.records[last.owner, last.number, 0] == VECTOR
    assert replica.records[mean.owner, mean.number, 0] == VECTOR
    cached = {start.number: start.num_cached_tokens for start in replica.starts}
    assert (cached[last.number], cached[mean.number]) == (16, 0)


@pytest.mark.parametrize("field", ["token_records", "prompt_records", "pooled"])
def test_a_result_with_other_records_than_planned_is_bad(field: str) -> None:
    replica = RecordingReplica()
    replica.add_recorded(wishes=BOTH)
    replica.issue()
    result = replica.results[0]
    changes: dict[str, Any] = {field: b"four"}
    with pytest.raises(BadResult):
        replica.core.apply(replace(result, **changes), replica.now)
    replica.deliver()


@pytest.mark.parametrize(
    "fields",
    [
        {"wishes": RecordWishes(prompt_from=10)},
        {"wishes": BOTH, "prompt_records": b"1234"},
        {"wishes": RecordWishes(), "prompt_records": bytes(8)},
        {"wishes": RecordWishes(pooling=Pooling.LAST), "max_tokens": 2},
        {
            "wishes": RecordWishes(token_words=2),
            "resume": (ResumedOutput(tokens=np.array([1], np.int32), records=b"1234"),),
        },
    ],
)
def test_records_that_cannot_be_are_refused(fields: dict[str, object]) -> None:
    replica = RecordingReplica()
    with pytest.raises(InvalidField):
        replica.add_recorded(prompt_of(10), **fields)  # type: ignore[arg-type] # by name
