"""Everything towards frontends in each turn: their messages in, statuses and news out. Knows no
worker and no plan.
"""

from collections.abc import Iterable

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.core.core import Core
from scheduler_svc.core.news import StepNews
from scheduler_svc.engine.connection import Incoming
from scheduler_svc.engine.delivery import Delivery
from scheduler_svc.engine.frontend_link import FrontendLink, OwnerGone, OwnerSeen, OwnerUnseen
from scheduler_svc.engine.holding import Holding
from scheduler_svc.engine.instant import Instant
from scheduler_svc.engine.intake import Intake

# a socket that was full is tried again after this long, and ever less often while it stays so
_FIRST_RETRY_S = 0.01
_LAST_RETRY_S = 0.25


class Desk:
    """`receive` each message, `settle` after them, `tell` what happened."""

    def __init__(
        self,
        core: Core,
        link: FrontendLink,
        *,
        intake: Intake,
        delivery: Delivery,
        holding: Holding,
    ) -> None:
        self._core = core
        self.link = link
        self._intake = intake
        self._delivery = delivery
        self._holding = holding
        self._status = engine.CoreStatus()
        self._retry_due_at = 0.0
        self._retry_interval_s = _FIRST_RETRY_S

    @property
    def has_unsent(self) -> bool:
        """Whether something waits for a frontend's socket."""
        return self._delivery.is_behind or any(c.has_unsent for c in self.link)

    def receive(self, identity: bytes, payload: bytes, at: Instant) -> None:
        """Takes one message."""
        newcomer = self.link.receive(identity, payload, at.patient)
        if newcomer is not None:
            self._holding.note_hello(newcomer.name, at.now)
            newcomer.post(engine.CoreToFrontend(status=self._status))

    def settle(self, at: Instant) -> None:
        """Acts on the messages taken, in order, and on time that passed."""
        for event in self.link.take_events():
            if isinstance(event, OwnerGone):
                self._holding.forget_owner(event.owner)
                self._delivery.forget_owner(event.owner)
                self._core.lose_owner(event.owner, at.now)
            elif isinstance(event, OwnerUnseen):
                self._core.owner_unseen(event.owner, at.now)
            elif isinstance(event, OwnerSeen):
                self._core.owner_seen(event.owner, at.now)
            else:
                self._intake.receive(Incoming(event.connection, event.message, at.now), at.now)
        self._intake.expire(at.now)

    def tell(self, news: Iterable[StepNews]) -> None:
        """Delivers news."""
        for step in news:
            self._delivery.deliver(step)

    def retry(self, at: Instant) -> None:
        """Serves frontends whose sockets were full, if it is time to try."""
        if not self.has_unsent:
            self._retry_interval_s = _FIRST_RETRY_S
            return
        if at.now < self._retry_due_at:
            return
        for connection in self.link:
            connection.flush()
        self._delivery.retry()
        self._retry_due_at = at.now + self._retry_interval_s
        self._retry_interval_s = min(2 * self._retry_interval_s, _LAST_RETRY_S)

    def retry_due_at(self) -> float | None:
        """When `retry` has something to do, on the real clock."""
        return self._retry_due_at if self.has_unsent else None

    def tell_status(self, status: engine.CoreStatus) -> None:
        """Sends the status to all frontends: a change, or the life sign."""
        self._status = status
        for connection in self.link:
            connection.offer(engine.CoreToFrontend(status=status))

    def tick(self, at: Instant) -> None:
        """Notes who was not heard; due every half second."""
        self.link.tick(at.patient)
