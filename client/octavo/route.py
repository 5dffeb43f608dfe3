"""Which of a client's targets a call goes to next. Knows no gRPC, has no clock."""

from __future__ import annotations

from octavo.errors import NotFound, ServiceError
from octavo.retries import Attempts


class Route:
    """The targets of one call, in turn: all of them, a wait, all of them again.

    `place` is the one in use, as its index among the client's targets.
    """

    def __init__(self, attempts: Attempts, *, num_targets: int, place: int) -> None:
        self._attempts = attempts
        self._num_targets = num_targets
        self._num_tried = 0
        self._worth_waiting: ServiceError | None = None
        self.place = place

    @property
    def num_attempts(self) -> int:
        """Further attempts made so far."""
        return self._attempts.num_further

    def stay(self, failure: ServiceError) -> float:
        """Seconds to wait before the same target is asked again; raises the failure at the end."""
        wait_s = self._attempts.wait_before_next_s(failure)
        if wait_s is None:
            raise failure
        return wait_s

    def move(self, failure: ServiceError) -> float:
        """Goes on to the next target; seconds to wait before. Raises the failure at the end.

        What no target knows is not waited for; where one could not say, it is.
        """
        if not isinstance(failure, NotFound):
            self._worth_waiting = failure
        self._num_tried += 1
        self.place = (self.place + 1) % self._num_targets
        if self._num_tried < self._num_targets:
            return 0.0
        reason, self._worth_waiting, self._num_tried = self._worth_waiting, None, 0
        if reason is None:
            raise failure
        return self.stay(reason)
