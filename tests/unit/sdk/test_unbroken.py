"""Whatever breaks, and however often: the joined stream is the undisturbed one, byte for byte.

The calls are those of a made-up service with two replicas in this thread; the rest is the client.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import grpc
from hypothesis import given
from hypothesis import strategies as st

import octavo
from octavo.recovery import NextCall, Opening, Recovery
from octavo.retries import Deadline
from octavo.route import Route
from octavo.stream import Stream
from octavo.stream_connection import StreamConnection
from octavo.stream_request import StreamRequest, stream_request
from octavo.v1 import inference_pb2 as api

NUM_REPLICAS = 2
FOREVER = Deadline(None, clock=lambda: 0.0)


class Broke(grpc.RpcError):
    """A call that ended badly."""

    def __init__(self, failure: octavo.ServiceError, *, is_accepted: bool) -> None:
        self.failure = failure
        self._headers = (("octavo-request-id", "r"),) if is_accepted else ()

    def initial_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._headers


@dataclass(frozen=True)
class Output:
    """What one output is in the end; a token's text is its id as a word, which may be empty."""

    token_ids: tuple[int, ...]
    reason: api.FinishReason.ValueType

    def text(self, begin: int, end: int) -> str:
        return "".join(f"{one} " if one else "" for one in self.token_ids[begin:end])

    @property
    def finish(self) -> api.Finish:
        return api.Finish(reason=self.reason, num_tokens=len(self.token_ids))


@dataclass
class World:
    """The service: what each replica knows, and how much each call brings before it breaks."""

    outputs: tuple[Output, ...]
    draw: st.DataObject
    num_breaks: int
    known: dict[int, list[int]] = field(default_factory=dict)
    openings: list[Opening] = field(default_factory=list)

    def answer(self, step: NextCall, request: StreamRequest) -> Iterator[api.AttachResponse]:
        begins, ended = self._begin(step, request)
        self.known[step.place] = [len(output.token_ids) for output in self.outputs]
        yield from self._chunks(step.place, begins, ended)

    def _begin(self, step: NextCall, request: StreamRequest) -> tuple[list[int], set[int]]:
        self._may_break(is_accepted=False)
        if step.opening is not Opening.ATTACH:
            received = request.generate(step.opening).resume.outputs
            for output, whole in zip(received, self.outputs, strict=False):
                assert tuple(output.token_ids) == whole.token_ids[: len(output.token_ids)]
            begins = [len(output.token_ids) for output in received] or [0] * len(self.outputs)
            return begins, {i for i, output in enumerate(received) if output.HasField("finish")}
        if step.place not in self.known:
            raise Broke(octavo.NotFound("unknown", code="NOT_FOUND"), is_accepted=False)
        begins = [*request.attach().from_tokens, *[0] * len(self.outputs)][: len(self.outputs)]
        if any(begin > num for begin, num in zip(begins, self.known[step.place], strict=True)):
            ahead = octavo.InternalError("", code="", reason="READER_AHEAD", is_resumable=True)
            raise Broke(ahead, is_accepted=False)
        return begins, set()

    def _chunks(
        self, place: int, begins: list[int], ended: set[int]
    ) -> Iterator[api.AttachResponse]:
        open_outputs = [index for index in range(len(self.outputs)) if index not in ended]
        begins = list(begins)
        start: api.StreamStart | None = api.StreamStart(seed=1, model="m", replica=f"at {place}")
        while open_outputs or start is not None:
            self._may_break(is_accepted=True)
            chunk = api.StreamChunk(request_id="r", start=start)
            start = None
            for index in list(open_outputs):
                whole, begin = self.outputs[index], begins[index]
                end = begin + self.draw.draw(st.integers(0, 3))
                is_last = end >= len(whole.token_ids)
                end = min(end, len(whole.token_ids))
                chunk.outputs.append(
                    api.OutputDelta(
                        index=index,
                        first_token_index=begin,
                        token_ids=whole.token_ids[begin:end],
                        text=whole.text(begin, end),
                        finish=whole.finish if is_last else None,
                    )
                )
                begins[index] = end
                if is_last:
                    open_outputs.remove(index)
            yield api.AttachResponse(chunk=chunk)
        self._may_break(is_accepted=True)

    def _may_break(self, *, is_accepted: bool) -> None:
        """Now and then the call breaks, and sometimes more is lost with it."""
        if not self.num_breaks or self.draw.draw(st.integers(0, 2)):
            return
        self.num_breaks -= 1
        for place in list(self.known):
            match self.draw.draw(st.integers(0, 3)):
                case 0:
                    del self.known[place]
                case 1:
                    self.known[place] = [0] * len(self.outputs)
        lost = octavo.Unavailable("lost", code="", is_resumable=True, is_retryable=True)
        raise Broke(lost, is_accepted=is_accepted)


class Calls:
    """The calls of one stream to the made-up service."""

    def __init__(self, world: World, request: StreamRequest) -> None:
        self._world = world
        self._request = request

    def open(self, step: NextCall) -> "Call":
        self._world.openings.append(step.opening)
        return Call(self._world.answer(step, self._request))

    def cancel(self, place: int) -> "Nothing":
        return Nothing()

    def failure(self, error: grpc.RpcError, place: int) -> octavo.ServiceError:
        assert isinstance(error, Broke)
        return error.failure

    def note_served(self, place: int) -> None:
        assert 0 <= place < NUM_REPLICAS


class Call:
    """One call."""

    def __init__(self, messages: Iterator[api.AttachResponse]) -> None:
        self._messages = messages

    def __next__(self) -> api.AttachResponse:
        return next(self._messages)

    def cancel(self) -> bool:
        return True


class Nothing:
    """A cancel that needs no waiting for."""

    def wait(self) -> None:
        return


def streamed(world: World) -> Stream:
    generation = api.Generation(request_id="r", sampling=api.SamplingParams(n=len(world.outputs)))
    request = stream_request(generation, clock=lambda: 0.0)
    retry = octavo.RetryPolicy(max_attempts=99, first_wait_s=0.0)
    reconnect = octavo.ReconnectPolicy(max_attempts=99, first_wait_s=0.0)
    recovery = Recovery(
        request.first_opening,
        route=Route(retry.attempts(FOREVER, random=lambda: 0.0), num_targets=NUM_REPLICAS, place=0),
        num_targets=NUM_REPLICAS,
        new_attempts=lambda: reconnect.attempts(FOREVER, random=lambda: 0.0),
        can_resume=True,
    )
    connection = StreamConnection(
        request.state, Calls(world, request), recovery=recovery, hand_over=lambda _: None
    )
    return Stream(connection, request.state, owner=None)


ENDS = st.sampled_from(
    [api.FINISH_REASON_EOS, api.FINISH_REASON_LENGTH, api.FINISH_REASON_STOP_STRING]
)
OUTPUTS = st.builds(
    Output, token_ids=st.lists(st.integers(0, 99), max_size=12).map(tuple), reason=ENDS
)


@given(
    outputs=st.lists(OUTPUTS, min_size=1, max_size=3).map(tuple),
    num_breaks=st.integers(0, 8),
    draw=st.data(),
)
def test_a_stream_is_what_it_would_have_been_without_any_break(
    outputs: tuple[Output, ...], num_breaks: int, draw: st.DataObject
) -> None:
    world = World(outputs, draw, num_breaks)
    stream = streamed(world)
    token_ids: list[list[int]] = [[] for _ in outputs]
    texts = [""] * len(outputs)
    ends: dict[int, octavo.Finish] = {}
    for delta in stream:
        assert delta.index not in ends, "a delta behind its output's end"
        assert delta.first_token_index == len(token_ids[delta.index])
        token_ids[delta.index] += delta.token_ids
        texts[delta.index] += delta.text
        if delta.finish is not None:
            ends[delta.index] = delta.finish
    assert token_ids == [list(output.token_ids) for output in outputs]
    assert texts == [output.text(0, len(output.token_ids)) for output in outputs]
    assert {index: end.num_tokens for index, end in ends.items()} == {
        index: len(output.token_ids) for index, output in enumerate(outputs)
    }
    assert stream.has_ended
    assert stream.num_reconnects == len(world.openings) - 1
