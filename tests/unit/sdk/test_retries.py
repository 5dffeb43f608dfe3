"""When a call is tried again. The pure rule with a clock that stands, then the client with it."""

import grpc
import pytest

import octavo
from octavo.retries import Attempts, Deadline
from tests.fakes.inference_server import FakeInferenceServer, Refusal

UNAVAILABLE = Refusal(code=grpc.StatusCode.UNAVAILABLE)
FULL = Refusal(code=grpc.StatusCode.RESOURCE_EXHAUSTED, retry_delay_s=0.01)


def attempts(
    *, max_attempts: int = 5, timeout_s: float | None = None, draw: float = 1.0
) -> Attempts:
    policy = octavo.RetryPolicy(max_attempts=max_attempts, first_wait_s=1.0, longest_wait_s=6.0)
    return policy.attempts(Deadline(timeout_s, clock=lambda: 100.0), random=lambda: draw)


def failure(*, after_s: float | None = None) -> octavo.ServiceError:
    return octavo.ServiceError("", code="X", retry_after_s=after_s)


def test_waits_double_up_to_the_longest() -> None:
    tried = attempts(max_attempts=6)
    waits = [tried.wait_before_next_s(failure()) for _ in range(6)]
    assert waits == [1.0, 2.0, 4.0, 6.0, 6.0, None]


def test_half_of_a_wait_is_random() -> None:
    assert attempts(draw=0.0).wait_before_next_s(failure()) == 0.5


def test_the_services_delay_goes_before_the_back_off() -> None:
    assert attempts().wait_before_next_s(failure(after_s=0.0)) == 0.0
    assert attempts().wait_before_next_s(failure(after_s=5.5)) == 5.5


def test_a_delay_beyond_the_longest_is_not_waited_for() -> None:
    assert attempts().wait_before_next_s(failure(after_s=60.0)) is None


def test_no_wait_reaches_the_deadline() -> None:
    assert attempts(timeout_s=1.5).wait_before_next_s(failure()) == 1.0
    assert attempts(timeout_s=1.0).wait_before_next_s(failure()) is None


def test_a_reconnect_begins_at_once_and_then_backs_off() -> None:
    policy = octavo.ReconnectPolicy(max_attempts=5, first_wait_s=1.0, longest_wait_s=3.0)
    tried = policy.attempts(Deadline(None, clock=lambda: 0.0), random=lambda: 1.0)
    waits = [tried.wait_before_next_s(failure()) for _ in range(6)]
    assert waits == [0.0, 1.0, 2.0, 3.0, 3.0, None]


def test_a_reconnect_obeys_the_service_within_its_limit() -> None:
    policy = octavo.ReconnectPolicy(limit_s=30.0, longest_wait_s=3.0)
    tried = policy.attempts(Deadline(None, clock=lambda: 0.0), random=lambda: 1.0)
    assert tried.wait_before_next_s(failure(after_s=20.0)) == 20.0
    assert tried.wait_before_next_s(failure(after_s=31.0)) is None


def test_reconnects_end_with_their_limit_or_with_the_deadline() -> None:
    now = 0.0
    policy = octavo.ReconnectPolicy(limit_s=30.0, first_wait_s=5.0)
    deadline = Deadline(40.0, clock=lambda: now)
    tried = policy.attempts(deadline, random=lambda: 1.0)
    now = 29.0
    assert tried.wait_before_next_s(failure()) == 0.0
    assert tried.wait_before_next_s(failure()) is None
    tried = policy.attempts(deadline, random=lambda: 1.0)
    now = 36.0
    assert tried.wait_before_next_s(failure()) == 0.0
    assert tried.wait_before_next_s(failure()) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_attempts", -1), ("limit_s", 0.0), ("limit_s", float("inf")), ("first_wait_s", -1.0)],
)
def test_a_reconnect_policy_that_means_nothing_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        octavo.ReconnectPolicy(**{name: value})  # type: ignore[arg-type]  # max_attempts is an int


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf")])
def test_a_timeout_must_be_a_number_above_0(timeout_s: float) -> None:
    with pytest.raises(octavo.InvalidRequest, match="timeout"):
        Deadline(timeout_s, clock=lambda: 0.0)


def test_a_policy_without_an_attempt_is_refused() -> None:
    with pytest.raises(ValueError, match="max_attempts"):
        octavo.RetryPolicy(max_attempts=0)


def test_a_unary_call_is_tried_again_with_the_same_id(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    server.refuse(UNAVAILABLE, FULL)
    assert client.generate("a").text == "You said: a"
    assert len({one.request_id for one in server.generations}) == 1
    assert server.num_calls == 3


def test_a_stream_is_tried_again_before_its_first_message(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    server.refuse(UNAVAILABLE, FULL)
    assert client.stream("a").result().text == "You said: a"
    assert server.num_calls == 3


def test_attempts_are_bounded(client: octavo.Client, server: FakeInferenceServer) -> None:
    server.refuse(*[UNAVAILABLE] * 10)
    with pytest.raises(octavo.Unavailable):
        client.stream("a").result()
    assert server.num_calls == 3


@pytest.mark.parametrize("pushback_ms", ["-1", "soon"])
def test_a_service_may_forbid_to_come_back(
    client: octavo.Client, server: FakeInferenceServer, pushback_ms: str
) -> None:
    server.refuse(Refusal(code=grpc.StatusCode.UNAVAILABLE, pushback_ms=pushback_ms))
    with pytest.raises(octavo.Unavailable) as caught:
        client.generate("a")
    assert not caught.value.is_retryable
    assert server.num_calls == 1


def test_the_pushback_goes_before_the_details(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    server.refuse(
        Refusal(code=grpc.StatusCode.RESOURCE_EXHAUSTED, retry_delay_s=0.01, pushback_ms="3600000")
    )
    with pytest.raises(octavo.Overloaded) as caught:
        client.generate("a")
    assert caught.value.retry_after_s == 3600.0


def test_a_limit_without_a_delay_is_not_tried_again(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    server.refuse(Refusal(code=grpc.StatusCode.RESOURCE_EXHAUSTED, message="message too large"))
    with pytest.raises(octavo.Overloaded):
        client.generate("a")
    assert server.num_calls == 1


def test_grpc_itself_tries_nothing_again(server: FakeInferenceServer) -> None:
    server.refuse(UNAVAILABLE, UNAVAILABLE)
    policy = octavo.RetryPolicy(max_attempts=1)
    with (
        octavo.Client(server.target, retry=policy) as client,
        pytest.raises(octavo.Unavailable),
    ):
        client.generate("a")
    assert server.num_calls == 1
