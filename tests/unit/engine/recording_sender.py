"""A socket's stand-in: records what is sent, and is full or without peers when told."""

from scheduler_svc.engine.router import Sent


class RecordingSender:
    """Takes messages until told otherwise."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, bytes]] = []
        self.full: set[bytes] = set()
        self.gone: set[bytes] = set()

    def send(self, identity: bytes, payload: bytes) -> Sent:
        """As a router does."""
        if identity in self.gone:
            return Sent.GONE
        if identity in self.full:
            return Sent.FULL
        self.sent.append((identity, payload))
        return Sent.SENT

    def take(self) -> list[tuple[bytes, bytes]]:
        """What was sent since the last call."""
        sent, self.sent = self.sent, []
        return sent
