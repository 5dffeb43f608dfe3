"""Streams that break and go on, seen by the user: one iterator, nothing twice, nothing missing."""

import threading
from collections.abc import Iterator

import grpc
import pytest

import octavo
from octavo.v1 import inference_pb2
from tests.fakes.inference_server import SEED, FakeInferenceServer, Refusal

SOON = octavo.ReconnectPolicy(max_attempts=4, first_wait_s=0.01, longest_wait_s=0.05)
RESUMABLE = {"resumable": "true"}
LOST = Refusal(code=grpc.StatusCode.UNAVAILABLE, is_bare=True)


@pytest.fixture
def client(server: FakeInferenceServer) -> Iterator[octavo.Client]:
    retry = octavo.RetryPolicy(max_attempts=2, first_wait_s=0.01)
    with octavo.Client(server.target, retry=retry, reconnect=SOON) as client:
        yield client


def broken(code: str, *, after_chunks: int = 2, reason: str = "") -> Refusal:
    """A break after some chunks: the service's own with a reason, else one of the way."""
    return Refusal(
        code=grpc.StatusCode[code],
        reason=reason,
        details=RESUMABLE if reason else {},
        is_bare=not reason,
        after_chunks=after_chunks,
    )


def deltas_of(text: str, client: octavo.Client) -> list[octavo.Delta]:
    """What an undisturbed stream brings."""
    return list(client.stream(text))


@pytest.mark.parametrize(
    "refusal",
    [
        broken("UNAVAILABLE"),
        broken("UNAVAILABLE", reason="DRAINED"),
        broken("INTERNAL"),
        broken("UNKNOWN"),
        broken("CANCELLED"),
        broken("RESOURCE_EXHAUSTED", reason="SLOW_READER"),
        broken("ABORTED", reason="MOVED"),
    ],
)
def test_a_break_does_not_show(
    client: octavo.Client, server: FakeInferenceServer, refusal: Refusal
) -> None:
    undisturbed = deltas_of("a b c", client)
    server.refuse(refusal)
    stream = client.stream("a b c")
    assert list(stream) == undisturbed
    assert server.openings == ["GENERATE", "GENERATE", "ATTACH"]
    assert stream.num_reconnects == 1
    assert stream.has_ended
    assert server.cancelled() == []


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (broken("ABORTED", reason="SUPERSEDED"), octavo.Superseded),
        (Refusal(code=grpc.StatusCode.INTERNAL, reason="GENERATION_FAILED", after_chunks=2), None),
        (Refusal(code=grpc.StatusCode.DEADLINE_EXCEEDED, reason="DEADLINE", after_chunks=2), None),
        (broken("PERMISSION_DENIED"), octavo.Unauthenticated),
    ],
)
def test_an_end_on_purpose_is_an_error_with_what_came(
    client: octavo.Client,
    server: FakeInferenceServer,
    refusal: Refusal,
    kind: type[octavo.ServiceError] | None,
) -> None:
    server.refuse(refusal)
    with pytest.raises(kind or octavo.ServiceError) as caught:
        list(client.stream("a b c"))
    assert server.openings == ["GENERATE"]
    assert caught.value.received is not None
    assert caught.value.received.text == "You said: "
    assert caught.value.received.seed == SEED


def test_a_stream_goes_on_through_many_breaks(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    text = " ".join("abcdefghij")
    undisturbed = deltas_of(text, client)
    # the word at which each call breaks: always behind something new
    server.refuse(*[broken("UNAVAILABLE", after_chunks=n) for n in range(1, 11)])
    assert list(client.stream(text)) == undisturbed


def test_what_nobody_knows_any_more_is_resumed_from_what_came(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    undisturbed = deltas_of("a b c", client)
    server.refuse(broken("UNAVAILABLE"))
    stream = client.stream("a b c", request_id="r")
    received = [next(stream), next(stream)]
    server.forget("r")
    assert [*received, *stream] == undisturbed
    assert server.openings[1:] == ["GENERATE", "ATTACH", "RESUME"]
    (resume,) = server.resumes
    (output,) = resume.outputs
    assert "".join(chr(one) for one in output.token_ids) == "You said: "
    assert not output.HasField("finish")
    assert resume.seed == SEED
    assert resume.age_ms >= 0
    first, again = server.generations[1:]
    assert first == again


def test_where_fewer_tokens_are_known_it_is_resumed(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    server.num_known_tokens = 9
    server.refuse(broken("UNAVAILABLE"))
    assert client.stream("a b c").result().text == "You said: a b c"
    assert server.openings == ["GENERATE", "ATTACH", "RESUME"]


def test_an_output_that_ended_is_not_begun_again(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    # The last chunk ends both outputs; the status behind it is lost, and so is the generation.
    server.refuse(broken("UNAVAILABLE", after_chunks=5))
    stream = client.stream("a b c", n=2)
    assert [output.text for output in stream.result().outputs] == ["You said: a b c"] * 2
    assert server.openings == ["GENERATE"]
    assert stream.has_ended


def test_a_stream_that_was_accepted_and_brought_nothing_goes_on(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    server.refuse(Refusal(code=grpc.StatusCode.UNAVAILABLE, after_headers=True, is_bare=True))
    assert client.stream("a b c").result().text == "You said: a b c"
    assert server.openings == ["GENERATE", "ATTACH"]


def test_a_whole_answer_goes_on_as_well(client: octavo.Client, server: FakeInferenceServer) -> None:
    server.refuse(broken("UNAVAILABLE"), LOST)
    assert client.generate("a b c", n=2).text == "You said: a b c"
    server.refuse(broken("UNAVAILABLE"), LOST)
    assert client.chat("a b c").text == "You said: a b c"
    assert server.openings == ["GENERATE", "ATTACH", "ATTACH"] * 2


def test_a_service_that_fell_and_rose_again_does_not_show(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    undisturbed = deltas_of("a b c", client)
    server.hold_after_chunks = 2
    stream = client.stream("a b c", request_id="r")
    received = [next(stream), next(stream)]
    assert server.wait_for_hold("r")
    server.hold_after_chunks = None
    server.fall()
    server.forget("r")
    server.rise()
    assert [*received, *stream] == undisturbed
    assert server.openings[-1] == "RESUME"


def test_attempts_are_bounded_and_what_came_is_not_lost(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    server.refuse(broken("UNAVAILABLE"), *[LOST] * 10)
    stream = client.stream("a b c")
    received = [next(stream), next(stream)]
    with pytest.raises(octavo.Unavailable) as caught:
        next(stream)
    assert server.openings == ["GENERATE"] + ["ATTACH"] * 4
    assert "4 attempts" in caught.value.__notes__[0]
    assert caught.value.received == stream.partial()
    assert "".join(delta.text for delta in received) == stream.partial().text == "You said: "
    assert list(stream) == []


def test_the_deadline_holds_for_all_calls_of_a_stream(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    server.hold_after_chunks = 3
    server.refuse(broken("UNAVAILABLE"))
    stream = client.stream("a b c", timeout=0.5)
    with pytest.raises(octavo.DeadlineExceeded) as caught:
        stream.result()
    assert caught.value.received == stream.partial()
    assert server.openings == ["GENERATE", "ATTACH"]
    assert server.wait_for_cancel(stream.request_id)


def test_a_stream_closed_after_a_break_cancels(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    server.hold_after_chunks = 3
    server.refuse(broken("UNAVAILABLE"))
    with client.stream("a b c") as stream:
        received = [next(stream) for _ in range(3)]
    assert [delta.text for delta in received] == ["You ", "said: ", "a "]
    assert server.cancelled() == [stream.request_id]
    assert server.wait_for_departure(stream.request_id)


def test_a_stream_closed_while_it_waits_to_go_on_ends_at_once(server: FakeInferenceServer) -> None:
    patient = octavo.ReconnectPolicy(first_wait_s=3600.0, longest_wait_s=3600.0, limit_s=1e6)
    waits = threading.Event()
    with octavo.Client(server.target, reconnect=patient) as client:
        server.refuse(broken("UNAVAILABLE"), LOST)
        stream = client.stream("a b c")
        received = [next(stream), next(stream)]
        reader = threading.Thread(target=received.extend, args=[stream])
        server.on_call = waits.set  # the attach that fails, before the long wait
        reader.start()
        assert waits.wait(20)
        server.on_call = None
        stream.close()
        reader.join(20)
        assert not reader.is_alive()
    assert len(received) == 2
    assert server.openings == ["GENERATE", "ATTACH"]
    assert server.cancelled() == [stream.request_id]


def test_a_stream_of_somebody_elses_generation_goes_on_too(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    client.stream("a b c", request_id="r").result()
    # the first word brings nothing new; the break comes behind the second
    server.refuse(broken("UNAVAILABLE"))
    rest = client.attach("r", from_tokens=[4])
    assert [delta.text for delta in rest if delta.text] == ["said: ", "a ", "b ", "c"]
    assert server.openings == ["GENERATE", "ATTACH", "ATTACH"]
    server.refuse(broken("UNAVAILABLE"))
    rest = client.attach("r", from_tokens=[4])
    next(rest)
    server.forget("r")
    with pytest.raises(octavo.NotFound) as caught:
        list(rest)
    assert caught.value.received is not None
    assert caught.value.received.text == "said: "


def test_a_service_that_goes_on_elsewhere_is_never_believed(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    server.refuse(broken("UNAVAILABLE"))
    stream = client.stream("a b c", request_id="r")
    received = [next(stream), next(stream)]
    other = inference_pb2.Generation(request_id="r", prompt=inference_pb2.Prompt(text="x"))
    other.sampling.seed = 1
    server.know(other)
    with pytest.raises(octavo.InternalError, match="seed 1"):
        list(stream)
    assert len(received) == 2
    assert server.wait_for_cancel("r")
