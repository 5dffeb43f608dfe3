"""How long a recovery of the workers took, part by part. Knows no clock and no rank."""

from dataclasses import dataclass

WORKERS_RESPAWN = "workers_respawn"
"""From the end of an epoch until another rank group is named: death, back-off, spawn."""
WORKERS_LOAD = "workers_load"
"""From then until all its ranks say Hello: interpreter, imports, weights, memory."""
WORKERS_PREPARE = "workers_prepare"
"""From Welcome to the last Ready."""
WORKERS_FIRST_TOKEN = "workers_first_token"
"""From the last Ready to the next token: what the service itself adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """When ranks came back, on one clock. Ranks that never left were named before the loss."""

    named_at: float
    welcomed_at: float
    ready_at: float


class Recovery:
    """`lost`, then `returned`, maybe several times, then `moved` once a token is there."""

    def __init__(self) -> None:
        self._lost_at: float | None = None
        self._return: Return | None = None

    def lost(self, now: float) -> None:
        """An epoch ended while work was there; the first loss counts until a token comes."""
        if self._lost_at is None:
            self._lost_at = now
        self._return = None

    def returned(self, came: Return) -> None:
        """Another epoch began."""
        if self._lost_at is not None:
            self._return = came

    def moved(self, now: float) -> dict[str, float] | None:
        """A token came: seconds of each part, once for each recovery; None when there was none."""
        lost_at, came = self._lost_at, self._return
        if lost_at is None or came is None:
            return None
        self._lost_at = self._return = None
        parts = {
            WORKERS_PREPARE: came.ready_at - came.welcomed_at,
            WORKERS_FIRST_TOKEN: now - came.ready_at,
        }
        if came.named_at > lost_at:
            parts[WORKERS_RESPAWN] = came.named_at - lost_at
            parts[WORKERS_LOAD] = came.welcomed_at - came.named_at
        return parts
