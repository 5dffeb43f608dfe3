"""Steps of the same decode rows, one after the other, as arrays. Knows no cache, no queue."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.simulator.fast_sequence import FastSequence
from bench.simulator.overheads import Overheads

# As in the engine's pacer, for steps that are as long as foreseen.
_LEAST_LEAD_S = 0.002
_LEAD_SHARE = 0.1


def lead_s(seconds: float, overheads: Overheads) -> float:
    """How long before the end of such a step the next one is planned."""
    return max(_LEAST_LEAD_S, _LEAD_SHARE * seconds) + overheads.plan_slack_s


@dataclass(slots=True, eq=False, kw_only=True)
class Stretch:
    """Planned steps in which nothing happens, some of them in the future."""

    rows: list[FastSequence]
    ends: npt.NDArray[np.float64]
    seconds: npt.NDArray[np.float64]
    known_at: float  # when the result of the step before the first is known
    overheads: Overheads

    def next_plans(self) -> npt.NDArray[np.float64]:
        """When the step after each of these steps is planned."""
        known = np.concatenate(([self.known_at], self.ends[:-1] + self.overheads.result_s))
        leads = np.maximum(_LEAST_LEAD_S, _LEAD_SHARE * self.seconds)
        return np.maximum(known, self.ends - leads - self.overheads.plan_slack_s)

    def cut(self, now: float) -> float | None:
        """Drops the steps not planned yet; when the next is planned, None if nothing changes."""
        plans = self.next_plans()
        count = int(np.searchsorted(plans, now)) + 1
        if count >= len(plans):
            return None
        self.ends, self.seconds = self.ends[:count], self.seconds[:count]
        return float(plans[count - 1])
