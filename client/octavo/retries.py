"""When a call is tried again, and until when it may run. Knows nothing of gRPC, has no clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from octavo.errors import ServiceError, invalid_field


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how soon a call is tried again that failed before its first message.

    Tried again are calls that found nobody (UNAVAILABLE), and calls refused with the advice to come
    back (RESOURCE_EXHAUSTED with a delay). The service's own delay goes before the back-off; a
    delay above `longest_wait_s` is not waited for. `max_attempts` 1 switches retries off.
    """

    max_attempts: int = 4
    first_wait_s: float = 0.2
    longest_wait_s: float = 10.0

    def __post_init__(self) -> None:
        """Refuses numbers that mean nothing."""
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, got {self.max_attempts}")
        if not (self.first_wait_s >= 0 and self.longest_wait_s >= 0):
            raise ValueError("first_wait_s and longest_wait_s must be at least 0")


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


class Attempts:
    """The attempts of one call; asked after each failure how long to wait for the next one."""

    def __init__(
        self, policy: RetryPolicy, deadline: Deadline, *, random: Callable[[], float]
    ) -> None:
        self._policy = policy
        self._deadline = deadline
        self._random = random
        self._num_failed = 0

    def wait_before_next_s(self, failure: ServiceError) -> float | None:
        """Seconds to wait before the next attempt; None when there is to be none."""
        self._num_failed += 1
        if not failure.is_retryable or self._num_failed >= self._policy.max_attempts:
            return None
        wait_s = failure.retry_after_s
        if wait_s is None:
            wait_s = self._back_off_s()
        remaining_s = self._deadline.remaining_s()
        if wait_s > self._policy.longest_wait_s or (
            remaining_s is not None and wait_s >= remaining_s
        ):
            return None
        return wait_s

    def _back_off_s(self) -> float:
        """Doubles each time; half of it is random, so that many clients do not return at once."""
        whole_s = self._policy.first_wait_s * 2.0 ** (self._num_failed - 1)
        return min(whole_s, self._policy.longest_wait_s) * (0.5 + 0.5 * self._random())
