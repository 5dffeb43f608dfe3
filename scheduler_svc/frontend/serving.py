"""Whether this frontend serves: what the core last said, whether a drain runs. Sends nothing."""

from __future__ import annotations

from collections.abc import Callable

from scheduler_svc.frontend.engine_link import SILENCE_LIMIT_S, EngineLink
from scheduler_svc.frontend.errors import Unavailable


class Serving:
    """One process's readiness, asked for by health, control and new requests."""

    def __init__(
        self, link: EngineLink, *, withdrawal_window_s: float, clock: Callable[[], float]
    ) -> None:
        """New requests are refused `withdrawal_window_s` after a drain began."""
        self._link = link
        self._window_s = withdrawal_window_s
        self._clock = clock
        self._drains_since: float | None = None
        self._is_stopping = False

    def drain(self) -> None:
        """Begins a drain; again does nothing."""
        if self._drains_since is None:
            self._drains_since = self._clock()

    def stop(self) -> None:
        """Refuses everything from now on."""
        self._is_stopping = True

    @property
    def is_draining(self) -> bool:
        """Whether a drain or the end has begun."""
        return self._is_stopping or self._drains_since is not None

    @property
    def refuses_new(self) -> bool:
        """Whether new requests are refused here, without asking the core."""
        if self._is_stopping:
            return True
        since = self._drains_since
        return since is not None and self._clock() >= since + self._window_s

    def check_accepts(self) -> None:
        """Raises Unavailable when new requests are refused."""
        if self.refuses_new:
            raise Unavailable("the replica is draining", reason="DRAINING")

    def not_serving_reason(self) -> str:
        """Why new requests had better go elsewhere; empty when they are welcome."""
        if self.is_draining:
            return "draining"
        silence_s = self._link.silence_s
        if silence_s is None:
            return "the core has not answered yet"
        if silence_s > SILENCE_LIMIT_S:
            return f"the core has said nothing for {silence_s:.1f} s"
        status = self._link.status
        if status.is_draining:
            return "draining"
        if not status.is_accepting:
            return status.not_accepting_reason or "the core accepts no requests"
        return "" if status.is_progressing else "a step is overdue"
