"""How often and how soon a call is tried again, and until when it may run. Has no clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from octavo.errors import ServiceError, invalid_field


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how soon a call is tried again that failed before it was accepted.

    Tried again are calls that found nobody (UNAVAILABLE), and calls refused with the advice to come
    back (RESOURCE_EXHAUSTED with a delay). The service's own delay goes before the back-off; a
    delay above `longest_wait_s` is not waited for. One attempt goes through all targets of a
    client. `max_attempts` 1 switches retries off.
    """

    max_attempts: int = 4
    first_wait_s: float = 0.2
    longest_wait_s: float = 10.0

    def __post_init__(self) -> None:
        """Refuses numbers that mean nothing."""
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, got {self.max_attempts}")
        _check_waits(self.first_wait_s, self.longest_wait_s)

    def attempts(self, deadline: Deadline, *, random: Callable[[], float]) -> Attempts:
        """The attempts of one call."""
        return Attempts(
            max_further=self.max_attempts - 1,
            first_wait_s=self.first_wait_s,
            longest_wait_s=self.longest_wait_s,
            longest_advice_s=self.longest_wait_s,
            deadline=deadline,
            random=random,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconnectPolicy:
    """How often, how soon and how long a client tries to go on with an accepted stream that broke.

    The first attempt comes at once and asks the same target again; each later one goes through all
    targets of a client. Attempts and time count from the last news: whenever something new came,
    the next break has all of them again. A service that says when to come back is obeyed, within
    `limit_s`. `max_attempts` 0 switches it off: a broken stream is an error at once.
    """

    max_attempts: int = 20
    limit_s: float = 60.0
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0

    def __post_init__(self) -> None:
        """Refuses numbers that mean nothing."""
        if self.max_attempts < 0:
            raise ValueError(f"max_attempts must be at least 0, got {self.max_attempts}")
        if not 0 < self.limit_s < math.inf:
            raise ValueError(f"limit_s must be a number above 0, got {self.limit_s}")
        _check_waits(self.first_wait_s, self.longest_wait_s)

    def attempts(self, deadline: Deadline, *, random: Callable[[], float]) -> Attempts:
        """The attempts after one break; their time begins now."""
        return Attempts(
            max_further=self.max_attempts,
            first_wait_s=self.first_wait_s,
            longest_wait_s=self.longest_wait_s,
            longest_advice_s=self.limit_s,
            begins_at_once=True,
            deadline=deadline.within(self.limit_s),
            random=random,
        )


class Deadline:
    """A point in time, or none, that all attempts of a call share."""

    def __init__(self, timeout_s: float | None, *, clock: Callable[[], float]) -> None:
        if timeout_s is not None and not 0 < timeout_s < math.inf:
            raise invalid_field("timeout", f"must be a number of seconds above 0, got {timeout_s}")
        self._clock = clock
        self._end = None if timeout_s is None else clock() + timeout_s

    def remaining_s(self) -> float | None:
        """Seconds left, at least 0; None without a limit."""
        return None if self._end is None else max(0.0, self._end - self._clock())

    def within(self, limit_s: float) -> Deadline:
        """This one or `limit_s` from now, whichever comes first."""
        bounded = Deadline(limit_s, clock=self._clock)
        if self._end is not None and bounded._end is not None:
            bounded._end = min(self._end, bounded._end)
        return bounded


class Attempts:
    """The further attempts of one call; asked after each failure how long to wait for the next."""

    def __init__(
        self,
        *,
        max_further: int,
        first_wait_s: float,
        longest_wait_s: float,
        longest_advice_s: float,
        deadline: Deadline,
        random: Callable[[], float],
        begins_at_once: bool = False,
    ) -> None:
        self._max_further = max_further
        self._first_wait_s = first_wait_s
        self._longest_wait_s = longest_wait_s
        self._longest_advice_s = longest_advice_s
        self._deadline = deadline
        self._random = random
        self._num_at_once = int(begins_at_once)
        self.num_further = 0

    def wait_before_next_s(self, failure: ServiceError) -> float | None:
        """Seconds to wait before the next attempt; None when there is to be none."""
        if self.num_further >= self._max_further:
            return None
        wait_s = failure.retry_after_s
        if wait_s is None:
            wait_s = self._back_off_s()
        elif wait_s > self._longest_advice_s:
            return None
        remaining_s = self._deadline.remaining_s()
        if remaining_s is not None and wait_s >= remaining_s:
            return None
        self.num_further += 1
        return wait_s

    def _back_off_s(self) -> float:
        """Doubles each time; half of it is random, so that many clients do not return at once."""
        num_waits = self.num_further - self._num_at_once
        if num_waits < 0:
            return 0.0
        whole_s = self._first_wait_s * 2.0**num_waits
        return min(whole_s, self._longest_wait_s) * (0.5 + 0.5 * self._random())


def _check_waits(first_wait_s: float, longest_wait_s: float) -> None:
    if not (first_wait_s >= 0 and longest_wait_s >= 0):
        raise ValueError("first_wait_s and longest_wait_s must be at least 0")
