"""Ranks that said they would be silent for a while. Knows nothing of what they do meanwhile."""

import logging

from octavo.internal.v1 import control_pb2 as control

_LOG = logging.getLogger(__name__)


class BusyRanks:
    """Until when each rank may be silent; what a rank says later shows that it is not busy any
    more.
    """

    def __init__(self) -> None:
        self._until: dict[bytes, tuple[float, str]] = {}

    @property
    def until(self) -> float:
        """When the last of them must be heard again; 0 when none is busy."""
        return max((until for until, _ in self._until.values()), default=0.0)

    @property
    def reason(self) -> str:
        """What keeps the last of them; empty when none is busy."""
        return max(self._until.values())[1] if self._until else ""

    def note(self, identity: bytes, busy: control.Busy, now: float) -> None:
        """A rank announces a silence."""
        until = now + busy.limit_ms / 1000
        self._until[identity] = (until, busy.reason or "no reason given")
        _LOG.info("a rank is busy for up to %.0f s: %s", until - now, busy.reason)

    def note_awake(self, identity: bytes) -> None:
        """A rank was heard."""
        self._until.pop(identity, None)

    def expire(self, now: float) -> None:
        """Drops silences that have lasted their time."""
        self._until = {who: busy for who, busy in self._until.items() if busy[0] > now}

    def forget_all(self) -> None:
        """The ranks are other ones now."""
        self._until.clear()
