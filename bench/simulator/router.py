"""Which replica gets a request. Knows prompts as names of their pieces, and how much each has.

Load is the number of requests a replica has not ended.
"""

import bisect
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from bench.simulator.jobs import Job
from bench.simulator.prompts import piece_keys

Loads = npt.NDArray[np.int64]

_PIECE_TOKENS = 64
_POINTS_PER_REPLICA = 64


class Router(Protocol):
    """A policy."""

    def choose(self, job: Job, loads: Loads) -> int:
        """The replica for a job."""


class RoundRobin:
    """One after the other."""

    def __init__(self, num_replicas: int) -> None:
        self._num_replicas = num_replicas
        self._last = -1

    def choose(self, job: Job, loads: Loads) -> int:
        """The next one."""
        self._last = (self._last + 1) % self._num_replicas
        return self._last


class LeastLoaded:
    """The one with the least to do; among equals the next one."""

    def __init__(self, num_replicas: int) -> None:
        self._num_replicas = num_replicas
        self._last = -1

    def choose(self, job: Job, loads: Loads) -> int:
        """The least loaded."""
        first = (self._last + 1) % self._num_replicas
        self._last = (first + int(np.roll(loads, -first).argmin())) % self._num_replicas
        return self._last


class PrefixAware:
    """The one that last got the longest beginning of this prompt, unless it has too much to do.

    A prompt with an unknown beginning goes where a consistent hash of its first piece points, so
    that several routers agree and a replica more or less moves few prompts. A replica has too much
    to do when it has more than `guard_factor` times the mean and `guard_slack` more; then the hash
    ring is walked on to the first that has not.
    """

    def __init__(
        self,
        num_replicas: int,
        *,
        guard_factor: float = 1.5,
        guard_slack: int = 4,
        max_pieces: int = 1_000_000,
    ) -> None:
        self._guard_factor = guard_factor
        self._guard_slack = guard_slack
        self._max_pieces = max_pieces
        self._replica_by_piece: OrderedDict[int, int] = OrderedDict()
        points = (
            (_ring_point(replica, point), replica)
            for replica in range(num_replicas)
            for point in range(_POINTS_PER_REPLICA)
        )
        self._ring = sorted(points)

    def choose(self, job: Job, loads: Loads) -> int:
        """The replica, which is remembered for the prompt's pieces."""
        pieces = piece_keys(job.prompt, piece_tokens=_PIECE_TOKENS)
        most = self._guard_factor * float(loads.mean()) + self._guard_slack
        replica = self._known(pieces)
        if replica is None or loads[replica] > most:
            first = pieces[0] if pieces else job.number
            replica = self._from_ring(first, loads, most)
        self._remember(pieces, replica)
        return replica

    def _known(self, pieces: list[int]) -> int | None:
        for piece in reversed(pieces):
            replica = self._replica_by_piece.get(piece)
            if replica is not None:
                return replica
        return None

    def _from_ring(self, piece: int, loads: Loads, most: float) -> int:
        start = bisect.bisect(self._ring, (_point_of(piece), 0))
        for offset in range(len(self._ring)):
            _, replica = self._ring[(start + offset) % len(self._ring)]
            if loads[replica] <= most:
                return replica
        raise AssertionError("no replica has as little as the mean")

    def _remember(self, pieces: list[int], replica: int) -> None:
        for piece in pieces:
            self._replica_by_piece[piece] = replica
            self._replica_by_piece.move_to_end(piece)
        while len(self._replica_by_piece) > self._max_pieces:
            self._replica_by_piece.popitem(last=False)


ROUTERS: dict[str, Callable[[int], Router]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "prefix": PrefixAware,
}


def _ring_point(replica: int, point: int) -> int:
    return xxh3_64_intdigest(f"{replica}/{point}".encode())


def _point_of(piece: int) -> int:
    return xxh3_64_intdigest(piece.to_bytes(8, "little", signed=True))
