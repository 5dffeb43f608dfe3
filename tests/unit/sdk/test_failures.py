"""How calls fail: typed errors with the service's details; no answer may break the contract."""

import grpc
import pytest

import octavo
from octavo.decoding import decode_finish
from octavo.status_details import StatusDetails, decode_status_details
from octavo.v1 import inference_pb2
from tests.fakes.inference_server import FakeInferenceServer, Refusal

CODES = [
    (grpc.StatusCode.INVALID_ARGUMENT, octavo.InvalidRequest),
    (grpc.StatusCode.UNAUTHENTICATED, octavo.Unauthenticated),
    (grpc.StatusCode.PERMISSION_DENIED, octavo.Unauthenticated),
    (grpc.StatusCode.NOT_FOUND, octavo.NotFound),
    (grpc.StatusCode.ALREADY_EXISTS, octavo.AlreadyExists),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, octavo.Overloaded),
    (grpc.StatusCode.DEADLINE_EXCEEDED, octavo.DeadlineExceeded),
    (grpc.StatusCode.ABORTED, octavo.Superseded),
    (grpc.StatusCode.INTERNAL, octavo.InternalError),
    (grpc.StatusCode.UNIMPLEMENTED, octavo.InternalError),
]


@pytest.mark.parametrize(("code", "kind"), CODES)
def test_each_status_has_its_error(
    client: octavo.Client,
    server: FakeInferenceServer,
    code: grpc.StatusCode,
    kind: type[octavo.ServiceError],
) -> None:
    server.refuse(Refusal(code=code, message="no"), Refusal(code=code, message="no"))
    with pytest.raises(kind, match="no") as unary:
        client.generate("a", request_id="r")
    with pytest.raises(kind, match="no") as streamed:
        client.stream("a", request_id="r").result()
    for caught in (unary, streamed):
        assert caught.value.code == code.name
        assert caught.value.request_id == "r"
        assert isinstance(caught.value, octavo.OctavoError)


def test_all_violations_are_in_the_error_and_in_its_text(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    server.refuse(
        Refusal(
            code=grpc.StatusCode.INVALID_ARGUMENT,
            message="2 fields break rules",
            reason="INVALID_REQUEST",
            violations=(("generation.prompt", "is empty"), ("generation.sampling.n", "is 0")),
        )
    )
    with pytest.raises(octavo.InvalidRequest) as caught:
        client.generate("")
    assert caught.value.violations == (
        octavo.Violation("generation.prompt", "is empty"),
        octavo.Violation("generation.sampling.n", "is 0"),
    )
    assert caught.value.reason == "INVALID_REQUEST"
    assert "generation.prompt: is empty" in str(caught.value)
    assert "generation.sampling.n: is 0" in str(caught.value)


def test_a_lost_stream_says_what_came_and_whether_it_can_go_on(server: FakeInferenceServer) -> None:
    server.refuse(
        Refusal(
            code=grpc.StatusCode.UNAVAILABLE,
            message="draining",
            reason="DRAINING",
            details={"request_id": "other", "resumable": "true"},
            after_chunks=2,
        )
    )
    reconnect = octavo.ReconnectPolicy(max_attempts=0)
    with octavo.Client(server.target, reconnect=reconnect) as client:
        stream = client.stream("a b c")
        received: list[octavo.Delta] = []
        with pytest.raises(octavo.Unavailable) as caught:
            received.extend(stream)
        assert caught.value.is_resumable
        assert caught.value.request_id == "other"
        assert caught.value.received == stream.partial()
        assert caught.value.received.text == "You said: "
        assert list(stream) == []
        rest = client.attach(stream.request_id, from_tokens=[len(stream.partial().token_ids)])
        assert rest.result().text == "a b c"
    assert server.openings == ["GENERATE", "ATTACH"]
    assert server.cancelled() == []


def test_nobody_at_the_address_is_said_with_the_address() -> None:
    with (
        octavo.Client("127.0.0.1:1", retry=octavo.RetryPolicy(max_attempts=1)) as client,
        pytest.raises(octavo.Unavailable, match=r"127\.0\.0\.1:1"),
    ):
        client.model_info()


def test_an_output_without_an_end_is_an_error(
    client: octavo.Client, server: FakeInferenceServer
) -> None:
    server.ends_early = True
    with pytest.raises(octavo.InternalError, match="output 0 did not"):
        client.stream("a b").result()


def test_an_unknown_finish_reason_is_an_error_that_names_it() -> None:
    finish = decode_finish(inference_pb2.Finish(reason=99))  # type: ignore[arg-type]  # a later one
    assert finish.reason is octavo.FinishReason.ERROR
    assert "99" in finish.message


def test_details_that_cannot_be_read_are_left_out() -> None:
    assert decode_status_details(b"\xff\xff\xff") == StatusDetails()
    assert decode_status_details(b"") == StatusDetails()
