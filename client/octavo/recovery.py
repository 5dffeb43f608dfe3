"""How a stream goes on when its call breaks: with which call, at which target, after which wait.

An accepted generation is looked for where it ran (Attach); where nobody knows it, it is begun
again from what was received (Generate with resume). Knows no gRPC; opens and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from octavo.errors import NotFound, ServiceError
from octavo.retries import Attempts
from octavo.route import Route

# The service's words for what is not a break.
_SUPERSEDED = "SUPERSEDED"  # another stream took the generation
_READER_AHEAD = "READER_AHEAD"  # fewer tokens of it are known there than were received


class Opening(Enum):
    """What a call of a stream asks for."""

    GENERATE = auto()  # begins the generation; one that is known by its id and body goes on
    ATTACH = auto()  # goes on with a generation that is running or kept
    RESUME = auto()  # begins it again from what was received


@dataclass(frozen=True, slots=True, kw_only=True)
class NextCall:
    """A call to open after a wait; `place` is the target's index among the client's."""

    opening: Opening
    place: int
    wait_s: float = 0.0


class Recovery:
    """The calls of one stream. A failure that ends it is raised."""

    def __init__(
        self,
        opening: Opening,
        *,
        route: Route,
        num_targets: int,
        new_attempts: Callable[[], Attempts],
        can_resume: bool,
    ) -> None:
        """`route` serves until the generation is accepted, then `new_attempts` at each break.

        `can_resume` is whether the whole request is known, and not only its id.
        """
        self._opening = opening
        self._route = route
        self._num_targets = num_targets
        self._new_attempts = new_attempts
        self._can_resume = can_resume
        self._was_accepted = False
        self._has_broken = False  # since the last news
        self._is_heard = False  # the present call brought a message
        self.num_calls = 1

    @property
    def first(self) -> NextCall:
        """The call that begins the stream."""
        return NextCall(opening=self._opening, place=self._route.place)

    def note_message(self, *, has_news: bool) -> None:
        """The present call brought a message, which may repeat what was known."""
        self._was_accepted = self._is_heard = True
        if has_news:
            self._has_broken = False

    def after(self, failure: ServiceError, *, was_accepted: bool) -> NextCall:
        """The call that follows a failed one; raises the failure when there is to be none."""
        self._was_accepted |= was_accepted
        if self._opening is Opening.ATTACH and self._can_resume and _is_unknown_there(failure):
            return self._next(Opening.RESUME, 0.0)
        if not self._was_accepted:
            if not (failure.is_retryable or self._may_ask_others(failure)):
                raise failure
            return self._next(self._opening, self._route.move(failure))
        if not self._may_go_on(failure):
            raise failure
        return self._next(Opening.ATTACH, self._wait_s(failure))

    def after_other_replica(self) -> NextCall:
        """The call that follows an Attach to a replica that may hold other tokens than came."""
        assert self._can_resume, "the state refuses what cannot be begun again"
        return self._next(Opening.RESUME, 0.0)

    def _wait_s(self, failure: ServiceError) -> float:
        if not self._has_broken:
            self._has_broken = True
            self._route = Route(
                self._new_attempts(), num_targets=self._num_targets, place=self._route.place
            )
            return self._route.stay(failure)
        try:
            return self._route.move(failure)
        except ServiceError as final:
            num_attempts = self._route.num_attempts
            final.add_note(f"The stream broke; {num_attempts} attempts to go on with it failed.")
            raise

    def _may_go_on(self, failure: ServiceError) -> bool:
        if failure.reason == _SUPERSEDED:
            # Somebody else wanted the stream; or an earlier call of ours that broke on its way
            # arrived after this one did.
            return failure.is_resumable and self.num_calls > 1 and not self._is_heard
        return failure.is_resumable or failure.is_retryable or self._may_ask_others(failure)

    def _may_ask_others(self, failure: ServiceError) -> bool:
        return self._opening is Opening.ATTACH and isinstance(failure, NotFound)

    def _next(self, opening: Opening, wait_s: float) -> NextCall:
        self._opening = opening
        self._is_heard = False
        self.num_calls += 1
        return NextCall(opening=opening, place=self._route.place, wait_s=wait_s)


def _is_unknown_there(failure: ServiceError) -> bool:
    return isinstance(failure, NotFound) or failure.reason == _READER_AHEAD
