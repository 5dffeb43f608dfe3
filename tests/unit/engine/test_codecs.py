"""Messages and the core's values say the same."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from octavo.internal.v1 import engine_pb2 as engine
from octavo.internal.v1 import step_pb2 as step
from scheduler_svc.core import refusals
from scheduler_svc.core.news import Attached, OutputEnd, OutputSoFar
from scheduler_svc.core.plan import SlotStart, StepPlan
from scheduler_svc.core.request import EndReason, SamplingParams
from scheduler_svc.engine.request_codec import (
    decode_end_reason,
    decode_submit,
    encode_attached,
    encode_end,
    encode_rejected,
    refusal_label,
)
from scheduler_svc.engine.step_codec import MalformedMessage, decode_result, encode_plan
from scheduler_svc.engine.tokenizer_size import UnreadableTokenizer, count_tokenizer_ids
from tests.unit.engine.scripted_frontend import ints, make_submit, resumed

EPOCH = step.Epoch(core_incarnation=3, counter=9)


def int32s(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, np.int32)


STEADY = StepPlan(
    step=7,
    slots=int32s(4, 2, 9),
    chunk_rows=int32s(),
    chunk_generations=int32s(),
    chunk_num_tokens=int32s(),
    chunk_start_positions=int32s(),
    chunk_samples=np.zeros(0, np.uint8),
    chunk_tokens=int32s(),
    new_block_slots=int32s(),
    new_block_indexes=int32s(),
    new_block_ids=int32s(),
    starts=(),
    position_checksum=2**64 - 1,
    num_decode_rows=3,
    num_prefill_tokens=0,
)


def test_steady_plan_is_its_slots_and_checksum() -> None:
    plan = step.CoreToRank.FromString(encode_plan(STEADY, EPOCH)).plan
    expected = step.StepPlan(
        epoch=EPOCH,
        step=7,
        slots=np.array([4, 2, 9], "<i4").tobytes(),
        position_checksum=2**64 - 1,
    )
    assert plan == expected


def test_plan_with_chunks_blocks_and_starts_keeps_every_column() -> None:
    sampling = SamplingParams(temperature=0.5, top_k=40, top_p=0.25, min_p=0.125, seed=2**64 - 5)
    plan = dataclasses.replace(
        STEADY,
        chunk_rows=int32s(2),
        chunk_generations=int32s(3),
        chunk_num_tokens=int32s(2),
        chunk_start_positions=int32s(16),
        chunk_samples=np.array([1], np.uint8),
        chunk_tokens=int32s(70, 71),
        new_block_slots=int32s(9),
        new_block_indexes=int32s(1),
        new_block_ids=int32s(55),
        starts=(
            SlotStart(
                slot=9,
                generation=3,
                num_prompt_tokens=18,
                sampling=sampling,
                stop_token_ids=(5, 6),
                min_position=20,
            ),
        ),
    )
    out = step.CoreToRank.FromString(encode_plan(plan, EPOCH)).plan
    assert ints(out.slots) == [4, 2, 9]
    assert (ints(out.chunk_rows), ints(out.chunk_generations)) == ([2], [3])
    assert (ints(out.chunk_num_tokens), ints(out.chunk_start_positions)) == ([2], [16])
    assert (out.chunk_samples, ints(out.chunk_tokens)) == (b"\1", [70, 71])
    columns = (out.new_block_slots, out.new_block_indexes, out.new_block_ids)
    assert [ints(column) for column in columns] == [[9], [1], [55]]
    expected = step.SlotStart(
        slot=9,
        generation=3,
        num_prompt_tokens=18,
        stop_token_ids=[5, 6],
        min_position=20,
        sampling=step.Sampling(temperature=0.5, top_k=40, top_p=0.25, min_p=0.125, seed=2**64 - 5),
    )
    assert list(out.starts) == [expected]


def test_result_columns_become_arrays() -> None:
    result = decode_result(
        step.StepResult(
            step=4,
            tokens=np.array([7, -1, 9], "<i4").tobytes(),
            token_counts=np.array([1, 0, 2], "<i4").tobytes(),
            failed_rows=np.array([1], "<i4").tobytes(),
            forward_us=12,
        )
    )
    assert (result.step, result.forward_us) == (4, 12)
    assert result.tokens.tolist() == [7, -1, 9]
    assert result.token_counts is not None
    assert result.token_counts.tolist() == [1, 0, 2]
    assert result.failed_rows.tolist() == [1]
    steady = decode_result(step.StepResult(step=4, tokens=bytes(8)))
    assert steady.token_counts is None
    assert steady.failed_rows.tolist() == []


def test_result_column_of_odd_length_is_named() -> None:
    with pytest.raises(MalformedMessage, match="token_counts"):
        decode_result(step.StepResult(tokens=bytes(4), token_counts=bytes(3)))


def test_submit_becomes_a_request_on_the_cores_clock() -> None:
    submit = make_submit(
        5,
        [1, 2, 3],
        tenant="t",
        min_tokens=2,
        eos_token_ids=[9],
        stop_token_ids=[10, 11],
        priority=-3,
        deadline_ms=1500,
        time_limit_ms=250,
        keep_for_ms=4000,
        age_ms=750,
        skip_cache_read=True,
        num_core_deaths=1,
        tenant_weight=2.5,
        tenant_max_requests=7,
        resume=[
            engine.ResumedSequence(
                tokens=np.array([4, 5], "<i4").tobytes(),
                is_finished=True,
                reason=engine.END_REASON_EOS,
                stop_token_id=9,
            )
        ],
    )
    request = decode_submit(submit, owner=3, now=100.0)
    assert (request.owner, request.number, request.tenant) == (3, 5, "t")
    assert (request.tenant_weight, request.tenant_max_requests) == (2.5, 7)
    assert request.prompt.tolist() == [1, 2, 3]
    assert (request.deadline, request.time_limit_at) == (101.5, 100.25)
    assert (request.keep_for_s, request.submitted_at) == (4.0, 99.25)
    assert (request.reads_cache, request.stores_cache) == (False, True)
    assert (request.eos_token_ids, request.stop_token_ids) == ((9,), (10, 11))
    assert (request.max_tokens, request.min_tokens, request.priority) == (8, 2, -3)
    (output,) = request.resume
    assert output.tokens.tolist() == [4, 5]
    assert (output.reason, output.stop_token_id) == (EndReason.EOS, 9)


def test_absent_times_and_bounds_are_none() -> None:
    submit = make_submit(1, [1], resume=[resumed([3])])
    submit.max_tokens = 0
    request = decode_submit(submit, owner=1, now=0.0)
    assert request.max_tokens is None
    assert request.tenant_weight == 1.0
    assert request.deadline is None
    assert request.time_limit_at is None
    assert request.resume[0].reason is None
    assert request.resume[0].stop_token_id is None


def test_attached_request_can_be_submitted_again_as_it_was() -> None:
    submit = make_submit(
        5,
        [1, 2, 3],
        tenant="t",
        min_tokens=2,
        eos_token_ids=[9],
        priority=4,
        time_limit_ms=60_000,
        keep_for_ms=4000,
        skip_cache_store=True,
        num_core_deaths=2,
        tenant_weight=0.5,
        tenant_max_requests=3,
    )
    request = decode_submit(submit, owner=3, now=100.0)
    end = OutputEnd(
        owner=3, number=5, output_index=1, num_tokens=1, reason=EndReason.EOS, stop_token_id=9
    )
    attached = Attached(
        request=request,
        deadline=130.0,
        outputs=(
            OutputSoFar(tokens=int32s(7, 8), end=None),
            OutputSoFar(tokens=int32s(9), end=end),
        ),
        max_tokens=8,
        num_cached_tokens=None,
        superseded=None,
    )
    message = encode_attached(attached, number=77, now=110.0)
    again = message.submit
    assert (again.number, again.age_ms, again.deadline_ms) == (0, 10_000, 20_000)
    assert again.time_limit_ms == 50_000
    submit.number, again.number = 1, 1
    for field in ("age_ms", "deadline_ms", "time_limit_ms"):
        submit.ClearField(field)
        again.ClearField(field)
    assert again == submit
    assert [ints(output.tokens) for output in message.outputs] == [[7, 8], [9]]
    assert not message.outputs[0].HasField("end")
    assert message.outputs[1].end == encode_end(end, number=77)
    assert message.num_cached_tokens == -1


def test_every_end_reason_goes_both_ways() -> None:
    for reason in EndReason:
        end = OutputEnd(owner=1, number=2, output_index=0, num_tokens=3, reason=reason)
        message = encode_end(end, number=2)
        assert decode_end_reason(message.reason) is reason
        assert message.stop_token_id == -1
    with pytest.raises(refusals.InvalidField, match="reason"):
        decode_end_reason(engine.END_REASON_UNSPECIFIED)


@pytest.mark.parametrize(
    ("refusal", "reason", "retry_after_ms"),
    [
        (refusals.PromptTooLong(num_tokens=9, limit=4), "PROMPT_TOO_LONG", 0),
        (
            refusals.QueueFull(what="requests", waiting=8, limit=8, retry_after_s=2.5),
            "QUEUE_FULL",
            2500,
        ),
        (refusals.TenantLimit(tenant="t", limit=1, retry_after_s=0.5), "TENANT_LIMIT", 500),
        (refusals.Draining(), "DRAINING", 0),
        (refusals.NoWorkers(), "NO_WORKERS", 1000),
        (refusals.DeadlineTooClose(needed_s=2, left_s=1), "DEADLINE", 0),
        (refusals.BodyDiffers(request_id="r"), "BODY_DIFFERS", 0),
        (refusals.UnknownRequest(request_id="r"), "NOT_FOUND", 0),
        (refusals.InvalidField("prompt", "must not be empty"), "INVALID", 0),
    ],
)
def test_refusals_keep_their_facts(
    refusal: refusals.Refused, reason: str, retry_after_ms: int
) -> None:
    rejected = encode_rejected(refusal, number=4)
    assert rejected.number == 4
    assert engine.RejectReason.Name(rejected.reason) == f"REJECT_REASON_{reason}"
    assert rejected.message == str(refusal)
    assert rejected.retry_after_ms == retry_after_ms
    assert refusal_label(refusal) == reason.lower()


def test_tokenizer_ids_are_counted_with_the_added_ones(tmp_path: Path) -> None:
    assert count_tokenizer_ids(tmp_path) is None
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": {"vocab": {"a": 0, "b": 4}}, "added_tokens": [{"id": 9}]}')
    assert count_tokenizer_ids(tmp_path) == 10
    path.write_text('{"model": {"vocab": [["a", -1.0], ["b", -2.0]]}}')
    assert count_tokenizer_ids(tmp_path) == 2
    path.write_text("{}")
    with pytest.raises(UnreadableTokenizer, match=r"tokenizer\.json"):
        count_tokenizer_ids(tmp_path)
