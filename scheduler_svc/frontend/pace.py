"""How fast one answer came, for the readings. Knows nothing of how it is sent.

Work for each chunk is two comparisons and one observation; what concerns the request as a whole is
counted once, at its end.
"""

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.record import RequestRecord
from scheduler_svc.frontend.traffic import Traffic

STALL_S = 1.0
"""A gap between tokens this long is a stall to whoever reads along."""


class Pace:
    """Times of one stream, noted as its chunks go out."""

    def __init__(
        self, traffic: Traffic, record: RequestRecord, *, arrived_at: float | None
    ) -> None:
        """`arrived_at` is None for a stream that goes on with an earlier one's request."""
        self._traffic = traffic
        self._record = record
        self._arrived_at = arrived_at
        self._made_at = 0.0
        self.first_at: float | None = None
        """When the first token was sent."""
        self.last_at: float | None = None
        """When the latest one was."""
        self.first_token_s: float | None = None
        """From arrival to the first token; None before it, and for a stream that goes on."""

    def note_made(self, *, now: float) -> None:
        """The next chunk is there, to be sent."""
        if self.last_at is not None and now - self.last_at >= STALL_S:
            self._traffic.stalled("service")
        self._made_at = now

    def note_taken(self, chunk: api.StreamChunk, *, now: float) -> None:
        """That chunk was taken by the client's connection."""
        if now - self._made_at >= STALL_S:
            self._traffic.stalled("client")
        outputs = chunk.outputs
        if len(outputs) == 1:  # nearly always, and on the way of every chunk
            most = len(outputs[0].token_ids)
        else:
            most = max((len(delta.token_ids) for delta in outputs), default=0)
        if not most:
            return
        if self.last_at is not None:
            self._traffic.tokens(now - self.last_at, count=most)
        else:
            self.first_at = now
            self._note_first(now)
        self.last_at = now

    def note_end(self, *, now: float) -> None:
        """The stream ended, well or not."""
        if self._arrived_at is None:
            return
        self._traffic.request_ended(now - self._arrived_at)
        if self.first_at is not None and self.last_at is not None:
            self._traffic.decoded(self.last_at - self.first_at)

    def _note_first(self, now: float) -> None:
        if self._arrived_at is None:
            return
        self.first_token_s = now - self._arrived_at
        self._traffic.first_token(self.first_token_s)
        queued_s = self._record.queued_s
        if queued_s is not None:
            self._traffic.prefilled(max(0.0, now - self._record.began_at - queued_s))
