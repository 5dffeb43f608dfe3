"""Which call follows a failed one. Pure rules: nothing is opened, nothing waits."""

import pytest

import octavo
from octavo.recovery import NextCall, Opening, Recovery
from octavo.retries import Deadline
from octavo.route import Route

FOREVER = Deadline(None, clock=lambda: 0.0)
LOST = octavo.Unavailable("lost", code="UNAVAILABLE", is_resumable=True, is_retryable=True)
RESET = octavo.InternalError("reset", code="INTERNAL", is_resumable=True)
UNKNOWN = octavo.NotFound("unknown", code="NOT_FOUND")
AHEAD = octavo.InternalError(
    "ahead", code="FAILED_PRECONDITION", reason="READER_AHEAD", is_resumable=True
)
FULL = octavo.Overloaded("full", code="RESOURCE_EXHAUSTED", is_retryable=True, retry_after_s=7.0)
FAILED = octavo.InternalError("NaN", code="INTERNAL")
SUPERSEDED = octavo.Superseded("taken", code="ABORTED", reason="SUPERSEDED", is_resumable=True)


def recovery(
    *,
    num_targets: int = 1,
    place: int = 0,
    opening: Opening = Opening.GENERATE,
    max_attempts: int = 4,
) -> Recovery:
    retry = octavo.RetryPolicy(max_attempts=2, first_wait_s=1.0)
    reconnect = octavo.ReconnectPolicy(max_attempts=max_attempts, first_wait_s=1.0)
    return Recovery(
        opening,
        route=Route(
            retry.attempts(FOREVER, random=lambda: 1.0), num_targets=num_targets, place=place
        ),
        num_targets=num_targets,
        new_attempts=lambda: reconnect.attempts(FOREVER, random=lambda: 1.0),
        can_resume=opening is Opening.GENERATE,
    )


def flowing(*, num_targets: int = 1, opening: Opening = Opening.GENERATE) -> Recovery:
    """One whose stream brought something."""
    one = recovery(num_targets=num_targets, opening=opening)
    one.note_message(has_news=True)
    return one


def after(one: Recovery, failure: octavo.ServiceError) -> NextCall:
    return one.after(failure, was_accepted=False)


def call(opening: str, place: int = 0, wait_s: float = 0.0) -> NextCall:
    return NextCall(opening=Opening[opening], place=place, wait_s=wait_s)


def test_what_was_not_accepted_is_begun_again_as_the_retry_policy_says() -> None:
    one = recovery()
    assert one.first == call("GENERATE")
    assert after(one, LOST) == call("GENERATE", wait_s=1.0)
    with pytest.raises(octavo.Unavailable):
        after(one, LOST)


def test_all_targets_are_asked_before_a_wait() -> None:
    one = recovery(num_targets=3, place=1)
    assert one.first == call("GENERATE", 1)
    assert [after(one, LOST) for _ in range(5)] == [
        call("GENERATE", 2),
        call("GENERATE", 0),
        call("GENERATE", 1, wait_s=1.0),
        call("GENERATE", 2),
        call("GENERATE", 0),
    ]
    with pytest.raises(octavo.Unavailable):
        after(one, LOST)


@pytest.mark.parametrize("failure", [FAILED, RESET, SUPERSEDED, UNKNOWN])
def test_what_was_refused_for_good_is_not_begun_again(failure: octavo.ServiceError) -> None:
    with pytest.raises(type(failure)):
        after(recovery(num_targets=2), failure)


@pytest.mark.parametrize("failure", [LOST, RESET])
def test_a_break_is_answered_by_an_attach_at_the_same_target_at_once(
    failure: octavo.ServiceError,
) -> None:
    assert after(flowing(num_targets=2), failure) == call("ATTACH")


def test_headers_alone_make_a_stream_accepted() -> None:
    assert recovery().after(LOST, was_accepted=True) == call("ATTACH")


@pytest.mark.parametrize("failure", [UNKNOWN, AHEAD])
def test_where_nothing_to_go_on_with_is_known_it_is_begun_again_from_what_came(
    failure: octavo.ServiceError,
) -> None:
    one = flowing()
    after(one, LOST)
    assert after(one, failure) == call("RESUME")


def test_a_lost_replica_is_followed_by_the_next_and_that_is_kept() -> None:
    one = flowing(num_targets=2)
    assert after(one, LOST) == call("ATTACH", 0)
    assert after(one, LOST) == call("ATTACH", 1)
    assert after(one, UNKNOWN) == call("RESUME", 1)
    one.note_message(has_news=True)
    assert after(one, LOST) == call("ATTACH", 1)


def test_attempts_are_bounded_and_counted_in_the_error() -> None:
    one = flowing()
    calls = [after(one, LOST) for _ in range(4)]
    assert [one.wait_s for one in calls] == [0.0, 1.0, 2.0, 4.0]
    with pytest.raises(octavo.Unavailable) as caught:
        after(one, LOST)
    assert "4 attempts" in caught.value.__notes__[-1]


def test_news_give_back_all_attempts_and_repetitions_do_not() -> None:
    one = flowing()
    after(one, LOST)
    one.note_message(has_news=True)
    assert after(one, LOST).wait_s == 0.0
    one.note_message(has_news=False)
    assert after(one, LOST).wait_s == 1.0


def test_a_full_replica_is_asked_again_when_it_says() -> None:
    one = flowing()
    after(one, LOST)
    after(one, UNKNOWN)
    assert after(one, FULL) == call("ATTACH", wait_s=7.0)


def test_a_generation_that_failed_is_not_gone_on_with() -> None:
    with pytest.raises(octavo.InternalError):
        after(flowing(), FAILED)


def test_a_stream_that_somebody_else_took_is_given_up() -> None:
    with pytest.raises(octavo.Superseded):
        after(flowing(), SUPERSEDED)
    one = flowing()
    after(one, LOST)
    one.note_message(has_news=False)
    with pytest.raises(octavo.Superseded):
        after(one, SUPERSEDED)


def test_a_late_call_of_ours_does_not_end_the_stream() -> None:
    one = flowing()
    after(one, LOST)
    assert after(one, SUPERSEDED) == call("ATTACH", wait_s=1.0)


def test_an_attached_stream_is_looked_for_at_every_target() -> None:
    one = recovery(num_targets=2, opening=Opening.ATTACH)
    assert one.first == call("ATTACH", 0)
    assert after(one, UNKNOWN) == call("ATTACH", 1)
    with pytest.raises(octavo.NotFound):
        after(one, UNKNOWN)


def test_a_target_that_could_not_say_is_asked_again() -> None:
    one = recovery(num_targets=2, opening=Opening.ATTACH)
    after(one, LOST)
    assert after(one, UNKNOWN) == call("ATTACH", 0, wait_s=1.0)


def test_an_attached_stream_whose_generation_is_gone_ends() -> None:
    one = flowing(opening=Opening.ATTACH)
    assert after(one, LOST) == call("ATTACH")
    with pytest.raises(octavo.NotFound):
        after(one, UNKNOWN)


def test_an_attached_stream_that_is_ahead_waits_for_the_tokens() -> None:
    one = flowing(opening=Opening.ATTACH)
    after(one, LOST)
    assert after(one, AHEAD) == call("ATTACH", wait_s=1.0)


def test_a_policy_without_attempts_switches_it_off() -> None:
    one = recovery(max_attempts=0)
    one.note_message(has_news=True)
    with pytest.raises(octavo.Unavailable):
        after(one, LOST)
