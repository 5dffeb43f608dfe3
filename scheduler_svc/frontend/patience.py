"""How long requests wait for a core that is gone or does not answer. Knows no socket."""

from collections.abc import Callable

from scheduler_svc.frontend.errors import Unavailable
from scheduler_svc.frontend.ledger import RequestLedger

# The core answers at once, or after the grace in which workers may come back; then it is at fault.
_ANSWER_MARGIN_S = 10.0
# Accepted streams wait through restarts, with their growing pauses, this long.
STREAM_LIMIT_S = 60.0
_RETRY_AFTER_MS = 1000


class CorePatience:
    """Ends what waits too long; every wait for the core has its limit here."""

    def __init__(
        self, ledger: RequestLedger, *, restart_grace_s: float, clock: Callable[[], float]
    ) -> None:
        """New requests wait `restart_grace_s` for a core to come back."""
        self._ledger = ledger
        self._grace_s = restart_grace_s
        self._clock = clock
        self._lost_at: float | None = None

    def core_lost(self) -> None:
        """No core answers from now on."""
        self._lost_at = self._clock()

    def core_found(self) -> None:
        """A core answers."""
        self._lost_at = None

    def end_what_waits_too_long(self) -> None:
        """Fails the requests whose time is over."""
        now = self._clock()
        for record in self._ledger.unanswered():
            waited_s = now - record.began_at
            if self._lost_at is not None:
                if now - max(self._lost_at, record.began_at) >= self._grace_s:
                    self._ledger.fail(record, _unreachable(waited_s))
            elif waited_s >= self._grace_s + _ANSWER_MARGIN_S:
                self._ledger.fail(record, _unreachable(waited_s))
        if self._lost_at is not None and now - self._lost_at >= STREAM_LIMIT_S:
            for record in self._ledger.live():
                self._ledger.fail(record, _unreachable(now - self._lost_at))


def _unreachable(waited_s: float) -> Unavailable:
    return Unavailable(
        f"the scheduler did not answer for {waited_s:.1f} s",
        reason="CORE_UNREACHABLE",
        retry_after_ms=_RETRY_AFTER_MS,
    )
