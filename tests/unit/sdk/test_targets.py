"""Several targets of one client: calls and streams go on at another when one is lost."""

from collections.abc import Iterator

import grpc
import pytest

import octavo
from tests.fakes.inference_server import FakeInferenceServer, Refusal

RETRY = octavo.RetryPolicy(max_attempts=2, first_wait_s=0.01)
RECONNECT = octavo.ReconnectPolicy(max_attempts=4, first_wait_s=0.01, longest_wait_s=0.05)
LOST = Refusal(code=grpc.StatusCode.UNAVAILABLE, is_bare=True)


@pytest.fixture
def one() -> Iterator[FakeInferenceServer]:
    with FakeInferenceServer(replica="one") as server:
        yield server


@pytest.fixture
def two() -> Iterator[FakeInferenceServer]:
    with FakeInferenceServer(replica="two") as server:
        yield server


@pytest.fixture
def client(one: FakeInferenceServer, two: FakeInferenceServer) -> Iterator[octavo.Client]:
    targets = [one.target, two.target]
    with octavo.Client(targets, retry=RETRY, reconnect=RECONNECT) as client:
        yield client


def begun(client: octavo.Client, server: FakeInferenceServer) -> octavo.Stream:
    """A stream that brought "You said: " from a server and is held there."""
    server.hold_after_chunks = 2
    stream = client.stream("a b c", request_id="r")
    assert [next(stream).text, next(stream).text] == ["You ", "said: "]
    assert server.wait_for_hold("r")
    server.hold_after_chunks = None
    return stream


def test_calls_go_to_the_first_target_until_it_fails_and_then_stay_at_the_next(
    client: octavo.Client, one: FakeInferenceServer, two: FakeInferenceServer
) -> None:
    assert client.model_info().replica == "one"
    one.refuse(LOST)
    assert client.model_info().replica == "two"
    assert client.model_info().replica == "two"
    assert client.generate("a").start == client.stream("a").result().start
    assert (one.num_calls, two.num_calls) == (2, 4)
    two.refuse(LOST)
    assert client.stream("a").result().start is not None
    assert client.model_info().replica == "one"


def test_nobody_at_any_target_is_an_error_after_the_attempts(
    client: octavo.Client, one: FakeInferenceServer, two: FakeInferenceServer
) -> None:
    one.refuse(*[LOST] * 5)
    two.refuse(*[LOST] * 5)
    with pytest.raises(octavo.Unavailable):
        client.model_info()
    assert (one.num_calls, two.num_calls) == (2, 2)


def test_a_request_that_is_refused_is_asked_of_nobody_else(
    client: octavo.Client, one: FakeInferenceServer, two: FakeInferenceServer
) -> None:
    one.refuse(Refusal(code=grpc.StatusCode.INVALID_ARGUMENT))
    with pytest.raises(octavo.InvalidRequest):
        client.generate("a")
    assert two.num_calls == 0


def test_a_full_target_is_followed_by_the_next_at_once(
    client: octavo.Client, one: FakeInferenceServer
) -> None:
    one.refuse(Refusal(code=grpc.StatusCode.RESOURCE_EXHAUSTED, retry_delay_s=3600.0))
    assert client.generate("a").text == "You said: a"


def test_a_lost_replica_does_not_show(
    client: octavo.Client, one: FakeInferenceServer, two: FakeInferenceServer
) -> None:
    stream = begun(client, one)
    one.fall()
    rest = list(stream)
    assert [delta.text for delta in rest] == ["a ", "b ", "c"]
    assert rest[0].first_token_index == 10
    assert two.openings == ["ATTACH", "RESUME"]
    assert stream.result().text == "You said: a b c"
    assert stream.start is not None
    assert stream.start.replica == "two"


def test_a_target_may_be_lost_before_the_first_message(
    client: octavo.Client, one: FakeInferenceServer, two: FakeInferenceServer
) -> None:
    one.fall()
    assert client.stream("a b c").result().text == "You said: a b c"
    assert two.openings == ["GENERATE"]


def test_a_connection_that_breaks_alone_is_gone_on_with_where_it_was(
    client: octavo.Client, one: FakeInferenceServer, two: FakeInferenceServer
) -> None:
    one.refuse(Refusal(code=grpc.StatusCode.UNAVAILABLE, is_bare=True, after_chunks=2))
    assert client.stream("a b c").result().text == "You said: a b c"
    assert one.openings == ["GENERATE", "ATTACH"]
    assert two.num_calls == 0


def test_an_older_copy_at_another_replica_is_not_gone_on_with(
    client: octavo.Client, one: FakeInferenceServer, two: FakeInferenceServer
) -> None:
    stream = begun(client, one)
    two.know(one.generations[-1])  # it may hold other tokens behind a near tie
    one.fall()
    assert stream.result().text == "You said: a b c"
    assert two.openings == ["ATTACH", "RESUME"]
    (resume,) = two.resumes
    assert len(resume.outputs[0].token_ids) == len("You said: ")


def test_a_moved_stream_is_cancelled_where_it_runs(
    client: octavo.Client, one: FakeInferenceServer, two: FakeInferenceServer
) -> None:
    stream = begun(client, one)
    two.hold_after_chunks = 3
    one.fall()
    assert next(stream).text == "a "
    stream.close()
    assert two.cancelled() == ["r"]


def test_attach_and_cancel_find_a_generation_wherever_it_is(
    client: octavo.Client, one: FakeInferenceServer, two: FakeInferenceServer
) -> None:
    with octavo.Client(two.target) as other:
        other.generate("a b c", request_id="there")
    assert client.attach("there", from_tokens=[10]).result().text == "a b c"
    assert client.cancel("there") is octavo.CancelOutcome.CANCELLED
    assert one.cancelled() == []  # it was found at the second, and asked for there
    client.model_info()
    with pytest.raises(octavo.NotFound):
        client.attach("nowhere").result()
    with pytest.raises(octavo.NotFound):
        client.cancel("nowhere")
    assert one.cancelled() == ["nowhere"]


async def test_a_lost_replica_does_not_show_to_asyncio_code(
    one: FakeInferenceServer, two: FakeInferenceServer
) -> None:
    one.refuse(Refusal(code=grpc.StatusCode.UNAVAILABLE, is_bare=True, after_chunks=2), LOST)
    targets = f"{one.target},{two.target}"
    async with octavo.AsyncClient(targets, retry=RETRY, reconnect=RECONNECT) as client:
        stream = client.stream("a b c", n=2, request_id="r")
        texts = [delta.text async for delta in stream if delta.index == 1]
        assert texts == ["You ", "said: ", "a ", "b ", "c"]
        assert stream.num_reconnects == 3
        assert two.openings == ["ATTACH", "RESUME"]
        assert (await client.model_info()).replica == "two"
        assert await client.cancel("r") is octavo.CancelOutcome.CANCELLED
        with pytest.raises(octavo.NotFound):
            await client.cancel("nowhere")
