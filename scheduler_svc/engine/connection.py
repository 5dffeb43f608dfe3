"""One frontend's connection: numbered messages both ways, in order, never blocking. Knows no
request.

A message takes its number when the socket takes it. What it does not take waits here, in order,
and goes out before any later news.
"""

from collections import deque
from dataclasses import dataclass

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.engine.router import Sender, Sent


class Connection:
    """From a frontend's Hello to its next one. `owner` names it towards the core."""

    def __init__(
        self,
        sender: Sender,
        *,
        identity: bytes,
        owner: int,
        name: str,
        incarnation: int,
        now: float,
    ) -> None:
        self._sender = sender
        self.identity = identity
        self.owner = owner
        self.name = name
        self.incarnation = incarnation
        self.heard_at = now
        self.is_unseen = False
        self.is_lost = False  # a message was lost or the peer is gone: nothing is said any more
        self._num_received = 0
        self._num_sent = 0
        self._unsent: deque[engine.CoreToFrontend] = deque()

    @property
    def has_unsent(self) -> bool:
        """Whether messages wait for the socket."""
        return bool(self._unsent)

    def take_number(self, number: int) -> bool:
        """Notes a received message's number; False when one before it was lost."""
        self._num_received += 1
        return number == self._num_received

    def lose(self) -> None:
        """Falls silent for good; what waits is dropped."""
        self.is_lost = True
        self._unsent.clear()

    def post(self, message: engine.CoreToFrontend) -> None:
        """Sends a message that must arrive: now, or in order when the socket takes it."""
        if not self.offer(message) and not self.is_lost:
            self._unsent.append(message)

    def offer(self, message: engine.CoreToFrontend) -> bool:
        """Sends a message only if it can go out now; returns whether it did."""
        return self.flush() and self._send(message)

    def flush(self) -> bool:
        """Sends what waits; returns whether all of it went out."""
        while self._unsent:
            if not self._send(self._unsent[0]):
                return False
            self._unsent.popleft()
        return not self.is_lost

    def _send(self, message: engine.CoreToFrontend) -> bool:
        message.message_number = self._num_sent + 1
        sent = self._sender.send(self.identity, message.SerializeToString())
        if sent is Sent.GONE:
            self.lose()
        if sent is not Sent.SENT:
            return False
        self._num_sent += 1
        return True


@dataclass(frozen=True, slots=True, eq=False)
class Incoming:
    """One message of a frontend. Times in it count from `received_at`, on the real clock."""

    connection: Connection
    message: engine.FrontendToCore
    received_at: float
