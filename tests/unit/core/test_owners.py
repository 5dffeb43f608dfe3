"""Owners come and go; a request has one at a time, and does not outlive its keeping."""

from dataclasses import replace

import pytest

from scheduler_svc.core.news import Attached, OwnerReference
from scheduler_svc.core.refusals import UnknownRequest
from scheduler_svc.core.request import EndReason, NewRequest
from tests.unit.core.replica import OWNER, VOCAB_SIZE, Reader, Replica, expected_output, prompt_of


def attach(replica: Replica, new: NewRequest, *, owner: int = 2, number: int = 1) -> Attached:
    answer = replica.core.attach(
        tenant=new.tenant,
        request_id=new.request_id,
        owner=owner,
        number=number,
        deadline=None,
        now=replica.now,
    )
    for index, output in enumerate(answer.outputs):
        replica.readers[owner, number, index] = Reader(output.tokens.tolist(), output.end)
    return answer


def steps_until(replica: Replica, new: NewRequest, num_tokens: int) -> None:
    while len(replica.tokens(new)) < num_tokens:
        replica.step()


def is_known(replica: Replica, new: NewRequest) -> bool:
    return replica.core.cancel(
        tenant=new.tenant, request_id=new.request_id, now=replica.now
    ).is_known


def pass_time(replica: Replica, seconds: float) -> None:
    replica.now += seconds
    replica.core.expire(replica.now)
    replica.hear()


# --- attach ---


def test_a_new_owner_gets_all_tokens_and_the_rest_follows() -> None:
    replica = Replica()
    new = replica.add(max_tokens=20)
    steps_until(replica, new, 7)
    answer = attach(replica, new)
    assert answer.superseded == OwnerReference(owner=OWNER, number=new.number)
    assert answer.request is new
    assert len(answer.outputs[0].tokens) == 7
    assert answer.num_cached_tokens == 0
    replica.run()
    assert replica.readers[2, 1, 0].tokens == expected_output(new, VOCAB_SIZE, 20)
    assert len(replica.tokens(new)) == 7, "the former owner is told nothing more"


def test_submitting_a_known_request_attaches() -> None:
    replica = Replica()
    new = replica.add(max_tokens=20)
    steps_until(replica, new, 3)
    answer = replica.submit(replace(new, owner=2, number=1))
    assert isinstance(answer, Attached)
    assert answer.superseded == OwnerReference(owner=OWNER, number=new.number)
    replica.run()
    assert replica.readers[2, 1, 0].tokens == expected_output(new, VOCAB_SIZE, 20)


def test_attach_brings_its_own_deadline() -> None:
    replica = Replica()
    new = replica.add(max_tokens=100, deadline=replica.now + 5.0)
    replica.step()
    attach(replica, new)
    pass_time(replica, 50.0)
    assert replica.readers[2, 1, 0].end is None
    replica.core.attach(
        tenant=new.tenant,
        request_id=new.request_id,
        owner=3,
        number=1,
        deadline=replica.now + 1.0,
        now=replica.now,
    )
    replica.readers[3, 1, 0] = replica.readers[2, 1, 0]
    pass_time(replica, 2.0)
    end = replica.readers[3, 1, 0].end
    assert end is not None
    assert end.reason is EndReason.DEADLINE


def test_ids_are_compared_whole_and_within_a_tenant() -> None:
    """CAN-03."""
    replica = Replica()
    for request_id in ("a", "a_1", "a_10"):
        replica.add(request_id=request_id, max_tokens=100)
    replica.step()
    for tenant, request_id in (("other", "a"), ("tenant", "a_"), ("tenant", "")):
        answer = replica.core.cancel(tenant=tenant, request_id=request_id, now=replica.now)
        assert not answer.is_known
    replica.core.cancel(tenant="tenant", request_id="a_1", now=replica.now)
    replica.hear()
    assert [replica.readers[OWNER, number, 0].end is None for number in (1, 2, 3)] == [
        True,
        False,
        True,
    ]
    with pytest.raises(UnknownRequest):
        replica.core.attach(
            tenant="other", request_id="a", owner=2, number=1, deadline=None, now=replica.now
        )


# --- ends and retention ---


def test_a_stop_string_ends_a_running_output_without_another_end() -> None:
    replica = Replica()
    new = replica.add(max_tokens=50, keep_for_s=60.0)
    steps_until(replica, new, 6)
    replica.core.finish_output(
        owner=OWNER,
        number=new.number,
        output_index=0,
        num_tokens=4,
        reason=EndReason.STOP_STRING,
        stop_string="END",
        now=replica.now,
    )
    replica.run()
    assert not replica.ends
    (output,) = attach(replica, new).outputs
    assert output.tokens.tolist() == replica.tokens(new)[:4]
    assert output.end is not None
    assert (output.end.reason, output.end.message, output.end.num_tokens) == (
        EndReason.STOP_STRING,
        "END",
        4,
    )
    replica.check_idle()


def test_an_end_is_provisional_until_its_owner_has_settled_it() -> None:
    replica = Replica(settles=False)
    new = replica.add(keep_for_s=60.0)
    replica.run()
    end = replica.reader(new).end
    assert end is not None
    answer = attach(replica, new)
    assert answer.superseded == OwnerReference(owner=OWNER, number=new.number)
    moved = answer.outputs[0].end
    assert moved is not None
    assert (moved.owner, moved.number) == (2, 1)
    replica.finish(moved, num_tokens=3, reason=EndReason.STOP_STRING, message="x")
    replica.finish(moved)
    (settled,) = attach(replica, new, owner=3).outputs
    assert len(settled.tokens) == 3
    assert settled.end is not None
    assert settled.end.reason is EndReason.STOP_STRING


def test_an_ended_request_is_kept_as_long_as_asked() -> None:
    replica = Replica()
    kept = replica.add(keep_for_s=30.0)
    gone = replica.add()
    replica.run()
    assert not is_known(replica, gone)
    pass_time(replica, 29.0)
    assert is_known(replica, kept)
    pass_time(replica, 2.0)
    assert not is_known(replica, kept)
    assert replica.core.next_expiry() is None or replica.core.counts().num_requests == 0


def test_keeping_is_bounded_in_time_and_in_tokens() -> None:
    replica = Replica(max_keep_for_s=10.0, max_retained_tokens=40)
    requests = [replica.add(prompt_of(10, first=n), keep_for_s=1e9) for n in range(4)]
    replica.run()
    assert [is_known(replica, new) for new in requests] == [False, False, True, True]
    assert replica.core.counts().num_retained_tokens == 36
    pass_time(replica, 11.0)
    assert replica.core.counts().num_requests == 0
    assert replica.core.counts().num_retained_tokens == 0


def test_what_an_owner_has_not_settled_is_not_dropped_for_others() -> None:
    replica = Replica(max_retained_tokens=0, settles=False)
    new = replica.add()
    replica.run()
    output = replica.core.output_so_far(
        owner=OWNER, number=new.number, output_index=0, first_token_index=5
    )
    assert output.tokens.tolist() == replica.tokens(new)[5:]
    pass_time(replica, 601.0)
    assert replica.core.counts().num_requests == 0, "but not for ever either"


def test_an_owner_that_missed_news_catches_up_from_any_token() -> None:
    replica = Replica()
    new = replica.add(max_tokens=30)
    steps_until(replica, new, 11)
    for first in (0, 3, 11):
        output = replica.core.output_so_far(
            owner=OWNER, number=new.number, output_index=0, first_token_index=first
        )
        assert output.tokens.tolist() == replica.tokens(new)[first:]
        assert output.end is None
    with pytest.raises(UnknownRequest):
        replica.core.output_so_far(owner=9, number=1, output_index=0, first_token_index=0)
    with pytest.raises(UnknownRequest):
        replica.core.output_so_far(
            owner=OWNER, number=new.number, output_index=1, first_token_index=0
        )


def test_cancelling_is_idempotent() -> None:
    """BM-03: twice, after the end, and for an id that nobody knows."""
    replica = Replica()
    new = replica.add(keep_for_s=60.0)
    name = {"tenant": new.tenant, "request_id": new.request_id}
    replica.step()
    assert not replica.core.cancel(**name, now=replica.now).was_finished
    assert replica.core.cancel(**name, now=replica.now).was_finished
    replica.hear()
    replica.run()
    assert len(replica.ends) == 1
    assert not replica.core.cancel(tenant="x", request_id="y", now=replica.now).is_known


def test_messages_about_a_number_that_is_not_owned_are_ignored() -> None:
    replica = Replica()
    new = replica.add(max_tokens=30)
    replica.step()
    replica.core.detach(owner=9, number=new.number, cancel=True, now=replica.now)
    for owner, number, index in ((9, 1, 0), (OWNER, 77, 0), (OWNER, new.number, 5)):
        replica.core.finish_output(
            owner=owner,
            number=number,
            output_index=index,
            num_tokens=0,
            reason=EndReason.STOP_STRING,
            stop_string="",
            now=replica.now,
        )
    replica.run()
    assert replica.tokens(new) == expected_output(new, VOCAB_SIZE, 30)


# --- without an owner ---


def test_a_detached_request_lives_on_and_can_be_attached_to() -> None:
    replica = Replica()
    new = replica.add(max_tokens=30, keep_for_s=60.0)
    steps_until(replica, new, 3)
    replica.core.detach(owner=OWNER, number=new.number, cancel=False, now=replica.now)
    replica.run()
    answer = attach(replica, new)
    assert answer.superseded is None
    assert answer.outputs[0].tokens.tolist() == expected_output(new, VOCAB_SIZE, 30)
    assert answer.outputs[0].end is not None


@pytest.mark.parametrize(("keep_for_s", "cancel"), [(0.0, False), (60.0, True)])
def test_a_detached_request_is_forgotten_at_once(keep_for_s: float, *, cancel: bool) -> None:
    replica = Replica()
    new = replica.add(max_tokens=30, keep_for_s=keep_for_s)
    replica.step()
    replica.core.detach(owner=OWNER, number=new.number, cancel=cancel, now=replica.now)
    assert not is_known(replica, new)
    replica.hear()
    assert [(end.owner, end.reason) for end in replica.ends] == [(0, EndReason.CANCELLED)]
    replica.run()
    replica.check_idle()
    replica.add(request_id=new.request_id, number=new.number + 1)


def test_an_orphan_pauses_and_goes_on_when_attached_to() -> None:
    replica = Replica(max_orphan_tokens=5)
    new = replica.add(max_tokens=40)
    steps_until(replica, new, 4)
    replica.core.lose_owner(OWNER, replica.now)
    replica.run()
    assert replica.core.counts().num_live == 1
    assert replica.core.counts().num_blocks_in_use == 0, "a paused sequence holds no blocks"
    answer = attach(replica, new)
    assert 9 <= len(answer.outputs[0].tokens) <= 11
    replica.run()
    assert replica.readers[2, 1, 0].tokens == expected_output(new, VOCAB_SIZE, 40)


def test_an_orphan_ends_with_its_grace() -> None:
    replica = Replica(orphan_grace_s=10.0, max_orphan_tokens=5)
    short = replica.add(max_tokens=40)
    kept = replica.add(max_tokens=40, keep_for_s=30.0)
    replica.step()
    replica.core.lose_owner(OWNER, replica.now)
    replica.run()
    pass_time(replica, 11.0)
    assert [(end.owner, end.reason) for end in replica.ends] == [(0, EndReason.CANCELLED)]
    assert not is_known(replica, short)
    assert is_known(replica, kept)
    pass_time(replica, 20.0)
    assert replica.core.counts().num_requests == 0


def test_an_unseen_owner_keeps_its_requests() -> None:
    replica = Replica(max_orphan_tokens=5, orphan_grace_s=10.0)
    new = replica.add(max_tokens=40)
    steps_until(replica, new, 2)
    replica.core.owner_unseen(OWNER, replica.now)
    replica.run()
    assert len(replica.tokens(new)) < 12, "it pauses, though its tokens are told"
    pass_time(replica, 9.0)
    replica.core.owner_seen(OWNER, replica.now)
    pass_time(replica, 9.0)
    replica.run()
    assert replica.tokens(new) == expected_output(new, VOCAB_SIZE, 40)


def test_a_request_resubmitted_without_owner_is_kept() -> None:
    replica = Replica()
    new = replica.add(is_detached=True, was_accepted=True, keep_for_s=20.0)
    replica.run()
    assert [end.owner for end in replica.ends] == [0]
    assert attach(replica, new).outputs[0].tokens.tolist() == expected_output(new, VOCAB_SIZE, 8)


def test_a_detached_resubmission_leaves_a_known_request_alone() -> None:
    replica = Replica()
    new = replica.add(max_tokens=20)
    replica.step()
    answer = replica.core.submit(replace(new, is_detached=True, number=7), replica.now)
    assert isinstance(answer, Attached)
    assert answer.superseded is None
    replica.run()
    assert replica.tokens(new) == expected_output(new, VOCAB_SIZE, 20)


# --- time ---


@pytest.mark.parametrize(
    ("field", "reason"),
    [("deadline", EndReason.DEADLINE), ("time_limit_at", EndReason.TIME_LIMIT)],
)
def test_time_ends_requests_that_run_and_that_wait(field: str, reason: EndReason) -> None:
    replica = Replica()
    running = replica.add(max_tokens=100, **{field: replica.now + 5.0})
    replica.step()
    replica.leave_epoch()
    waiting = replica.add(max_tokens=100, num_outputs=2, **{field: replica.now + 5.0})
    expiry = replica.core.next_expiry()
    assert expiry is not None
    assert expiry <= replica.now + 5.0
    pass_time(replica, 6.0)
    assert replica.reason(running) is reason
    assert [replica.reason(waiting, index) for index in range(2)] == [reason, reason]
    assert not replica.core.has_work


def test_wake_ups_of_ended_requests_do_not_pile_up() -> None:
    replica = Replica()
    for n in range(600):
        replica.add(prompt_of(2, first=n), max_tokens=1, deadline=replica.now + 1e6)
        replica.step()
    replica.run()
    assert len(replica.core._registry._wake_ups) < 300
