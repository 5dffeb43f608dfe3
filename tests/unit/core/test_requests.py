"""The way in: what is refused, what is clamped, what a resume does."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scheduler_svc.core.core import Core
from scheduler_svc.core.limits import Policy
from scheduler_svc.core.news import Accepted, Attached
from scheduler_svc.core.refusals import (
    BodyDiffers,
    DeadlineTooClose,
    Draining,
    InvalidField,
    NoWorkers,
    PromptTooLong,
    QueueFull,
    TenantLimit,
)
from scheduler_svc.core.request import EndReason, ResumedOutput, SamplingParams
from tests.unit.core.replica import VOCAB_SIZE, Replica, expected_output, limits, prompt_of


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("prompt", {"prompt": np.empty(0, np.int32)}),
        ("prompt", {"prompt": np.array([VOCAB_SIZE], np.int32)}),
        ("prompt", {"prompt": np.array([-1], np.int32)}),
        ("stop_token_ids", {"stop_token_ids": (VOCAB_SIZE,)}),
        ("eos_token_ids", {"eos_token_ids": (-1,)}),
        ("num_outputs", {"num_outputs": 0}),
        ("num_outputs", {"num_outputs": 17}),
        ("max_tokens", {"max_tokens": 0}),
        ("min_tokens", {"min_tokens": -1}),
        ("min_tokens", {"min_tokens": 9, "max_tokens": 8}),
        ("priority", {"priority": 9}),
        ("seed", {"sampling": SamplingParams(seed=-1)}),
        ("keep_for_s", {"keep_for_s": -1.0}),
        ("number", {"number": 0}),
        ("resume", {"resume": (ResumedOutput(tokens=np.empty(0, np.int32)),) * 2}),
        ("resume", {"resume": (ResumedOutput(tokens=np.array([VOCAB_SIZE], np.int32)),)}),
    ],
)
def test_a_field_out_of_range_is_named(field: str, changes: dict[str, Any]) -> None:
    """LEN-05, LEN-06, LEN-09: every number and id list is checked, and nothing is kept."""
    replica = Replica()
    new = replace(replica.new(), **changes)
    with pytest.raises(InvalidField) as refusal:
        replica.submit(new)
    assert refusal.value.field == field
    assert str(refusal.value).startswith(field)
    assert replica.core.counts().num_requests == 0


def test_a_number_in_use_is_refused() -> None:
    replica = Replica()
    first = replica.add()
    with pytest.raises(InvalidField, match="number"):
        replica.submit(replica.new(number=first.number))


@pytest.mark.parametrize("max_tokens", [1, 2, 100, None, 2**31 - 1])
@pytest.mark.parametrize("short_by", [1, 2])
def test_tokens_are_clamped_to_what_fits(short_by: int, max_tokens: int | None) -> None:
    """LEN-03: prompts right below the limit."""
    replica = Replica(limits(max_model_len=30))
    new = replica.new(prompt_of(30 - short_by), max_tokens=max_tokens)
    answer = replica.submit(new)
    fitting = min(short_by, max_tokens or short_by)
    assert isinstance(answer, Accepted)
    assert answer.max_tokens == fitting
    replica.run()
    assert len(replica.tokens(new)) == fitting


def test_a_prompt_without_room_for_a_token_is_refused() -> None:
    replica = Replica(limits(max_model_len=30))
    for length in (30, 31):
        with pytest.raises(PromptTooLong) as refusal:
            replica.submit(replica.new(prompt_of(length)))
        assert (refusal.value.num_tokens, refusal.value.limit) == (length, 29)


def test_the_cache_bounds_a_sequence_too() -> None:
    """PR-01: proved at admission, so that no sequence waits for blocks that do not exist."""
    replica = Replica(limits(num_blocks=4))
    assert replica.core.max_sequence_tokens == 12
    with pytest.raises(PromptTooLong):
        replica.submit(replica.new(prompt_of(12)))
    new = replica.add(prompt_of(11), max_tokens=50)
    replica.run()
    assert len(replica.tokens(new)) == 1


def test_the_queue_is_bounded_in_requests() -> None:
    replica = Replica(limits(max_num_seqs=1), max_queue_requests=3)
    for _ in range(3):
        replica.add()
    with pytest.raises(QueueFull) as refusal:
        replica.submit(replica.new())
    assert (refusal.value.waiting, refusal.value.limit) == (3, 3)
    assert refusal.value.retry_after_s > 0
    replica.step()
    replica.add()


def test_the_queue_is_bounded_in_tokens() -> None:
    replica = Replica(max_queue_tokens=25)
    replica.add(prompt_of(20))
    with pytest.raises(QueueFull, match="prompt tokens"):
        replica.submit(replica.new(prompt_of(6)))
    replica.add(prompt_of(5))


@pytest.mark.parametrize("what", ["requests", "prompt tokens"])
def test_who_fills_the_queue_does_not_keep_others_out(what: str) -> None:
    """A tenant below its share of the queue is let in, up to twice the limits."""
    bound: dict[str, Any] = (
        {"max_queue_requests": 4} if what == "requests" else {"max_queue_tokens": 40}
    )
    replica = Replica(limits(max_num_seqs=1), **bound)
    for _ in range(4):
        replica.add(tenant="flood")
    with pytest.raises(QueueFull, match=what):
        replica.submit(replica.new(tenant="flood"))
    for _ in range(2):
        replica.add(tenant="steady")
    with pytest.raises(QueueFull, match=what):
        replica.submit(replica.new(tenant="steady"))
    replica.add(tenant="third")
    replica.add(tenant="fourth")
    with pytest.raises(QueueFull, match=what) as refusal:
        replica.submit(replica.new(prompt_of(5), tenant="fifth"))
    assert refusal.value.limit == (8 if what == "requests" else 80)


def test_ended_requests_leave_their_tenants_share_of_the_queue() -> None:
    replica = Replica(limits(max_num_seqs=1), max_queue_requests=2)
    for _ in range(2):
        replica.add(tenant="flood")
    new = replica.add(tenant="steady")
    with pytest.raises(QueueFull):
        replica.submit(replica.new(tenant="steady"))
    replica.core.cancel(tenant="steady", request_id=new.request_id, now=replica.now)
    replica.hear()
    replica.add(tenant="steady")
    replica.run()
    replica.check_idle()


def test_an_empty_queue_takes_any_prompt() -> None:
    replica = Replica(max_queue_tokens=25)
    new = replica.add(prompt_of(100))
    replica.run()
    assert len(replica.tokens(new)) == 8


def test_a_tenant_has_its_limit() -> None:
    replica = Replica()
    limited = {"tenant": "busy", "tenant_max_requests": 2}
    for _ in range(2):
        replica.add(**limited)
    with pytest.raises(TenantLimit):
        replica.submit(replica.new(**limited))
    replica.add(tenant="other", tenant_max_requests=2)
    replica.run()
    replica.add(**limited)


def test_a_resumed_request_meets_twice_the_tenants_limit() -> None:
    replica = Replica()
    limited = {"tenant_max_requests": 1, "resume": (resumed(),)}
    for _ in range(2):
        replica.add(**limited)
    with pytest.raises(TenantLimit):
        replica.submit(replica.new(**limited))


def test_waiting_for_longer_than_the_queue_time_ends_a_request() -> None:
    replica = Replica(limits(max_num_seqs=1), max_queue_s=5.0)
    runs = replica.add(max_tokens=100)
    replica.step()
    waits = replica.add(num_outputs=2)
    accepted_before = replica.add(was_accepted=True)
    assert replica.core.next_expiry() is not None
    replica.now += 5.0
    replica.step()
    assert [replica.reason(waits, index) for index in range(2)] == [EndReason.QUEUE_TIME] * 2
    assert "waited 5.0 s for the first step, the limit is 5 s" in replica.ends[0].message
    replica.run()
    for new in (runs, accepted_before):
        assert replica.reason(new) is EndReason.LENGTH, "what has run, or waited before, goes on"


def test_a_deadline_that_cannot_be_met_is_refused() -> None:
    replica = Replica()
    with pytest.raises(DeadlineTooClose):
        replica.submit(replica.new(deadline=replica.now))
    # The fake worker takes 1 ms and 10 us a token: 64 waiting ones take about 2 ms.
    replica.add(prompt_of(64), max_tokens=100)
    replica.step()
    replica.add(prompt_of(200))
    with pytest.raises(DeadlineTooClose) as refusal:
        replica.submit(replica.new(deadline=replica.now + 0.001))
    assert refusal.value.needed_s > 0.001
    replica.submit(replica.new(deadline=replica.now + 10.0))


def test_a_cached_prompt_meets_a_deadline_that_another_would_not() -> None:
    replica = Replica()
    replica.add(prompt_of(200), max_tokens=1)
    replica.run()
    replica.add(prompt_of(3, first=2), max_tokens=100)
    replica.step()
    deadline = replica.now + 0.001
    with pytest.raises(DeadlineTooClose):
        replica.submit(replica.new(prompt_of(200, first=3), deadline=deadline))
    known = replica.new(prompt_of(200), max_tokens=1, deadline=deadline)
    replica.submit(known)
    replica.issue()
    replica.deliver()
    replica.issue()
    replica.deliver()
    assert len(replica.tokens(known)) == 1


def test_a_drain_refuses_new_requests_and_known_ones_go_on() -> None:
    replica = Replica()
    new = replica.add()
    replica.core.refuse_new(draining=True, no_workers=False)
    with pytest.raises(Draining):
        replica.submit(replica.new())
    again = replace(new, owner=2, number=1)
    assert isinstance(replica.submit(again), Attached)
    replica.run()
    assert replica.tokens(again) == expected_output(new, VOCAB_SIZE, 8)


def test_the_end_of_a_drain_ends_what_lives() -> None:
    replica = Replica()
    requests = [replica.add(max_tokens=100) for _ in range(3)]
    replica.step()
    replica.core.end_all(EndReason.DRAINED, replica.now)
    replica.hear()
    assert all(replica.reason(new) is EndReason.DRAINED for new in requests)
    replica.run()
    replica.check_idle()


def test_without_workers_new_requests_are_refused() -> None:
    core = Core(Policy(), cache_root=b"root")
    replica = Replica()
    with pytest.raises(NoWorkers):
        core.submit(replica.new(), replica.now)
    assert core.max_sequence_tokens == 0
    replica.core.refuse_new(draining=False, no_workers=True)
    with pytest.raises(NoWorkers):
        replica.submit(replica.new())


def test_what_was_accepted_before_meets_no_limit() -> None:
    replica = Replica(max_queue_requests=1)
    replica.add(tenant_max_requests=1)
    replica.core.refuse_new(draining=True, no_workers=True)
    new = replica.add(was_accepted=True, tenant_max_requests=1, deadline=replica.now + 100.0)
    replica.run()
    assert len(replica.tokens(new)) == 8


# --- resume ---


def resumed(*tokens: int, reason: EndReason | None = None) -> ResumedOutput:
    return ResumedOutput(tokens=np.array(tokens, np.int32), reason=reason)


@pytest.mark.parametrize("count", [0, 1, 5, 7])
def test_a_resumed_output_goes_on_where_it_stopped(count: int) -> None:
    replica = Replica()
    new = replica.new()
    expected = expected_output(new, VOCAB_SIZE, 8)
    again = replace(new, resume=(resumed(*expected[:count]),))
    replica.submit(again)
    replica.run()
    assert replica.tokens(again) == expected
    starts = [start for plan in replica.plans for start in plan.starts]
    assert starts[0].num_prompt_tokens == 10, "what was generated stays told from what was given"
    end = replica.reader(again).end
    assert end is not None
    assert end.num_tokens == 8


def test_a_resume_that_was_complete_ends_at_once() -> None:
    replica = Replica()
    whole = replica.add(resume=(resumed(*range(8)),))
    assert replica.reason(whole) is EndReason.LENGTH
    stopped = replica.add(eos_token_ids=(3,), resume=(resumed(1, 2, 3),))
    end = replica.reader(stopped).end
    assert end is not None
    assert (end.reason, end.stop_token_id, end.num_tokens) == (EndReason.EOS, 3, 3)
    assert replica.issue() is None
    replica.check_idle()


def test_resumed_tokens_count_for_min_tokens() -> None:
    replica = Replica()
    new = replica.add(eos_token_ids=(3,), min_tokens=4, resume=(resumed(1, 2, 3),))
    assert replica.reason(new) is None
    replica.run()
    assert len(replica.tokens(new)) == 8


def test_an_output_resumed_as_finished_is_final() -> None:
    replica = Replica()
    new = replica.new(num_outputs=2)
    expected = expected_output(new, VOCAB_SIZE, 8, 1)
    finished = resumed(4, 5, reason=EndReason.STOP_STRING)
    again = replace(new, resume=(finished, resumed(*expected[:2])), keep_for_s=10.0)
    replica.submit(again)
    replica.run()
    assert replica.tokens(again, 1) == expected
    assert [end.output_index for end in replica.ends] == [1]
    answer = replica.core.attach(
        tenant=new.tenant, request_id=new.request_id, owner=2, number=1, deadline=None, now=200.0
    )
    first = answer.outputs[0]
    assert first.end is not None
    assert (first.tokens.tolist(), first.end.reason) == ([4, 5], EndReason.STOP_STRING)


def test_a_wholly_finished_resume_leaves_nothing() -> None:
    replica = Replica()
    replica.add(resume=(resumed(1, reason=EndReason.CANCELLED),))
    assert not replica.ends
    assert replica.core.counts().num_requests == 0
    replica.check_idle()


def test_a_live_request_goes_on_from_a_longer_resume() -> None:
    replica = Replica()
    new = replica.add()
    expected = expected_output(new, VOCAB_SIZE, 8)
    while len(replica.tokens(new)) < 2:
        replica.step()
    again = replace(new, owner=2, number=1, resume=(resumed(*expected[:6]),))
    answer = replica.submit(again)
    assert isinstance(answer, Attached)
    assert answer.outputs[0].tokens.tolist() == expected[:6]
    replica.run()
    assert replica.tokens(again) == expected
    replica.check_idle()


def test_a_live_request_ignores_a_shorter_resume() -> None:
    replica = Replica()
    new = replica.add()
    expected = expected_output(new, VOCAB_SIZE, 8)
    while len(replica.tokens(new)) < 4:
        replica.step()
    again = replace(new, owner=2, number=1, resume=(resumed(*expected[:1]),))
    answer = replica.submit(again)
    assert isinstance(answer, Attached)
    assert answer.outputs[0].tokens.tolist() == expected[:4]


def test_the_same_id_with_another_body_is_refused() -> None:
    replica = Replica()
    new = replica.add()
    with pytest.raises(BodyDiffers):
        replica.submit(replace(new, number=9, body_digest=b"other"))
    replica.submit(replace(new, number=9, tenant="other", body_digest=b"other"))
