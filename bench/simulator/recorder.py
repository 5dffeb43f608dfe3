"""What clients saw: first tokens, gaps between tokens, tokens by tenant. Knows no replica.

Times count from `measures_from` to `measures_until`; what is before is warm-up, what is after the
end of a trace.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bench.simulator.histogram import Histogram
from bench.simulator.jobs import Job

Numbers = npt.NDArray[np.int32]


@dataclass(slots=True)
class Served:
    """One request as it was served."""

    job: Job
    arrived_s: float
    replica: int
    num_cached: int = 0
    ended_s: float | None = None


@dataclass(slots=True)
class TenantCount:
    """What a tenant got while it was measured."""

    num_prompt_tokens: int = 0  # computed, not found in a cache
    num_generated_tokens: int = 0
    num_refused: int = 0


@dataclass(frozen=True, slots=True)
class GapsAt:
    """The gaps that ended at one moment."""

    at_s: float
    gaps_s: npt.NDArray[np.float64]


@dataclass(slots=True)
class Window:
    """From when to when is measured."""

    from_s: float = 0.0
    until_s: float = math.inf

    def __contains__(self, moment: float) -> bool:
        """Whether a moment counts."""
        return self.from_s <= moment < self.until_s


@dataclass(slots=True)
class Recorder:
    """Takes down what happens to requests, by their numbers."""

    window: Window = field(default_factory=Window)
    keeps_gaps: bool = False

    served: list[Served] = field(default_factory=list)
    gaps: Histogram = field(default_factory=Histogram)
    gaps_at: list[GapsAt] = field(default_factory=list)
    tenants: dict[str, TenantCount] = field(default_factory=dict)
    num_refused: int = 0
    num_preemptions: int = 0
    num_steps: int = 0
    busy_s: float = 0.0

    first_s: npt.NDArray[np.float64] = field(default_factory=lambda: np.full(1024, np.nan))
    last_s: npt.NDArray[np.float64] = field(default_factory=lambda: np.full(1024, np.nan))
    num_tokens: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(1024, np.int64))
    _tenant: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(1024, np.int32))
    _tenant_tokens: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    _tenant_indexes: dict[str, int] = field(default_factory=dict)

    @property
    def next_number(self) -> int:
        """The number of the next request."""
        return len(self.served) + 1

    def arrive(self, job: Job, *, replica: int, now: float) -> None:
        """A request was sent to a replica."""
        assert job.number == self.next_number, "requests are numbered in order of arrival"
        self.served.append(Served(job, now, replica))
        if job.number >= len(self.first_s):
            self._grow()
        tenant = job.conversation.tenant
        if tenant not in self.tenants:
            self.tenants[tenant] = TenantCount()
            self._tenant_indexes[tenant] = len(self._tenant_indexes)
            self._tenant_tokens = np.append(self._tenant_tokens, 0)
        self._tenant[job.number] = self._tenant_indexes[tenant]

    def refuse(self, number: int, now: float) -> None:
        """The replica said no."""
        if now in self.window:
            self.num_refused += 1
            self.tenants[self._tenant_of(number)].num_refused += 1

    def start(self, number: int, *, num_cached: int, now: float) -> None:
        """A request's prompt begins to be computed."""
        served = self.served[number - 1]
        served.num_cached = num_cached
        if now in self.window:
            count = self.tenants[self._tenant_of(number)]
            count.num_prompt_tokens += served.job.num_prompt_tokens - num_cached

    def tokens(self, numbers: Numbers, now: float) -> None:
        """Each of these requests got a token."""
        is_later = self.num_tokens[numbers] > 0
        later = numbers if is_later.all() else numbers[is_later]
        self._count_gaps(now - self.last_s[later], now)
        if len(later) < len(numbers):
            self.first_s[numbers[~is_later]] = now
        self.last_s[numbers] = now
        self.num_tokens[numbers] += 1
        if now in self.window:
            np.add.at(self._tenant_tokens, self._tenant[numbers], 1)

    def steady(self, numbers: Numbers, moments: npt.NDArray[np.float64]) -> None:
        """Each of these requests, which all have tokens, got one at each of these moments."""
        self.tokens(numbers, float(moments[0]))
        gaps, later = np.diff(moments), moments[1:]
        counts = (later >= self.window.from_s) & (later < self.window.until_s)
        self.gaps.add(gaps[counts], times=len(numbers))
        if self.keeps_gaps:
            rows = zip(later.tolist(), gaps.tolist(), strict=True)
            self.gaps_at += [GapsAt(at, np.full(len(numbers), gap)) for at, gap in rows]
        self.last_s[numbers] = moments[-1]
        self.num_tokens[numbers] += len(later)
        np.add.at(self._tenant_tokens, self._tenant[numbers], int(counts.sum()))

    def end(self, number: int, now: float) -> None:
        """A request ended."""
        self.served[number - 1].ended_s = now

    def step(self, seconds: float, now: float, *, times: int = 1) -> None:
        """A replica computed so many steps in so long."""
        if now in self.window:
            self.num_steps += times
            self.busy_s += seconds

    def finish(self) -> None:
        """Everything was told: adds up what is kept by tenant."""
        for tenant, count in self.tenants.items():
            count.num_generated_tokens = int(self._tenant_tokens[self._tenant_indexes[tenant]])

    def _count_gaps(self, gaps: npt.NDArray[np.float64], now: float) -> None:
        if now in self.window:
            self.gaps.add(gaps)
        if self.keeps_gaps:
            self.gaps_at.append(GapsAt(now, gaps))

    def _tenant_of(self, number: int) -> str:
        return self.served[number - 1].job.conversation.tenant

    def _grow(self) -> None:
        size = len(self.first_s)
        self.first_s = np.concatenate((self.first_s, np.full(size, np.nan)))
        self.last_s = np.concatenate((self.last_s, np.full(size, np.nan)))
        self.num_tokens = np.concatenate((self.num_tokens, np.zeros(size, np.int64)))
        self._tenant = np.concatenate((self._tenant, np.zeros(size, np.int32)))
