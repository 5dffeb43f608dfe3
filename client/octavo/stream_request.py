"""The messages that open the calls of one stream, made from what came so far. Sends nothing."""

from __future__ import annotations

from collections.abc import Callable

from octavo.recovery import Opening
from octavo.stream_state import StreamState
from octavo.trace_context import trace_metadata
from octavo.v1 import inference_pb2


class StreamRequest:
    """What one stream asks for; `generation` None: one that somebody else began."""

    def __init__(
        self,
        state: StreamState,
        generation: inference_pb2.Generation | None,
        *,
        clock: Callable[[], float],
    ) -> None:
        self.state = state
        self._generation = generation
        self._clock = clock
        self.trace_metadata = trace_metadata()
        """The trace of whoever began the stream, for all its calls."""
        self._began_at = clock()

    @property
    def can_resume(self) -> bool:
        """Whether the whole request is known, and not only its id."""
        return self._generation is not None

    @property
    def first_opening(self) -> Opening:
        """How the stream begins."""
        return Opening.ATTACH if self._generation is None else Opening.GENERATE

    def attach(self) -> inference_pb2.AttachRequest:
        """For Opening.ATTACH."""
        return self.state.attach_request()

    def generate(self, opening: Opening) -> inference_pb2.GenerateRequest:
        """For Opening.GENERATE and Opening.RESUME."""
        request = inference_pb2.GenerateRequest(generation=self._generation)
        if opening is Opening.RESUME:
            age_ms = int(1000 * (self._clock() - self._began_at))
            request.resume.CopyFrom(self.state.resume(age_ms=age_ms))
        return request


def stream_request(
    generation: inference_pb2.Generation, *, clock: Callable[[], float]
) -> StreamRequest:
    """The request of a stream that begins a generation."""
    state = StreamState(generation.request_id, num_outputs=generation.sampling.n or 1)
    return StreamRequest(state, generation, clock=clock)
