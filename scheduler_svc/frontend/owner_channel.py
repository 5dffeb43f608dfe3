"""What an owner says of its requests on the present connection, under the numbers it gives them.

Numbers count from 1 on each connection and are never used again on it. Without a connection
nothing is said: the ledger says it once there is one. Knows no rules of recovery.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.frontend.record import RequestRecord


class Sender(Protocol):
    """A connection to the core."""

    def send(self, message: engine.FrontendToCore) -> None:
        """Sends in order, never blocks."""


class OwnerChannel:
    """Numbers, and the messages that carry them."""

    def __init__(self) -> None:
        self._connection: Sender | None = None
        self._by_number: dict[int, RequestRecord] = {}
        self._next_number = 1

    @property
    def records(self) -> Mapping[int, RequestRecord]:
        """The requests that the core knows by a number of this connection."""
        return self._by_number

    def open(self, connection: Sender) -> None:
        """A new connection: numbers begin anew."""
        self._connection = connection
        self._by_number.clear()
        self._next_number = 1

    def close(self) -> None:
        """The connection is over: its numbers mean nothing any more."""
        self._connection = None
        self._by_number.clear()

    def has(self, record: RequestRecord) -> bool:
        """Whether the core knows the request by its number."""
        return self._by_number.get(record.number) is record

    def forget(self, record: RequestRecord) -> None:
        """Lets go of the number without a word."""
        if self.has(record):
            del self._by_number[record.number]
        record.is_owned = False

    def submit(self, record: RequestRecord, *, now: float) -> None:
        """Asks to run the request, under a new number."""
        if self._connection is not None:
            submit = record.submission(self._numbered(record), now=now)
            self._connection.send(engine.FrontendToCore(submit=submit))

    def attach(self, record: RequestRecord, *, now: float) -> None:
        """Asks for the request by its name, under a new number."""
        if self._connection is None:
            return
        tenant, request_id = record.name
        attach = engine.AttachRequestToFrontend(
            number=self._numbered(record),
            tenant=tenant,
            request_id=request_id,
            deadline_ms=record.deadline_ms(now),
        )
        self._connection.send(engine.FrontendToCore(attach=attach))

    def finish(self, record: RequestRecord, finish: engine.Finish) -> None:
        """Says where an output ended."""
        finish.number = record.number
        self.say(engine.FrontendToCore(finish=finish))

    def detach(self, record: RequestRecord, detach: engine.Detach) -> None:
        """Releases the number: nothing more comes for it."""
        detach.number = record.number
        self.forget(record)
        self.say(engine.FrontendToCore(detach=detach))

    def say(self, message: engine.FrontendToCore) -> None:
        """Sends what carries no number of its own."""
        if self._connection is not None:
            self._connection.send(message)

    def _numbered(self, record: RequestRecord) -> int:
        self.forget(record)
        record.number = self._next_number
        self._next_number += 1
        self._by_number[record.number] = record
        return record.number
