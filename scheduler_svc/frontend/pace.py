"""How fast one answer came, for the readings. Knows nothing of how it is sent."""

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.traffic import Traffic


class Pace:
    """Times of one stream, noted as its chunks go out."""

    def __init__(self, traffic: Traffic, *, arrived_at: float | None) -> None:
        """`arrived_at` is None for a stream that goes on with an earlier one's request."""
        self._traffic = traffic
        self._arrived_at = arrived_at
        self._tokens_at: float | None = None

    def note(self, chunk: api.StreamChunk, *, now: float) -> None:
        """A chunk was taken by the client's connection."""
        most = max((len(delta.token_ids) for delta in chunk.outputs), default=0)
        if not most:
            return
        if self._tokens_at is not None:
            self._traffic.tokens(now - self._tokens_at, count=most)
        elif self._arrived_at is not None:
            self._traffic.first_token(now - self._arrived_at)
        self._tokens_at = now

    def note_end(self, *, now: float) -> None:
        """The last chunk was taken."""
        if self._arrived_at is not None:
            self._traffic.request_ended(now - self._arrived_at)
