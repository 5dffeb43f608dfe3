"""A histogram of times in bins half a percent wide. Knows nothing of what is timed."""

import math

import numpy as np
import numpy.typing as npt

_LEAST_S = 1e-6
_MOST_S = 1e5
_BIN_WIDTH = math.log(1.005)
_NUM_BINS = math.ceil(math.log(_MOST_S / _LEAST_S) / _BIN_WIDTH) + 1


class Histogram:
    """Counts of seconds; percentiles are right within half a percent."""

    def __init__(self) -> None:
        self._counts = np.zeros(_NUM_BINS, np.int64)
        self.largest_s = 0.0

    def __len__(self) -> int:
        """Times counted."""
        return int(self._counts.sum())

    def add(self, seconds: npt.NDArray[np.float64], *, times: int = 1) -> None:
        """Counts each of these so many times."""
        if not len(seconds):
            return
        clipped = np.clip(seconds, _LEAST_S, _MOST_S)
        bins = (np.log(clipped / _LEAST_S) / _BIN_WIDTH).astype(np.intp)
        np.add.at(self._counts, bins, times)
        self.largest_s = max(self.largest_s, float(seconds.max()))

    def percentile(self, percent: float) -> float:
        """The time that so many percent do not exceed; 0 if nothing was counted."""
        cumulated = np.cumsum(self._counts)
        if not cumulated[-1]:
            return 0.0
        place = int(np.searchsorted(cumulated, cumulated[-1] * percent / 100))
        return _LEAST_S * math.exp((place + 0.5) * _BIN_WIDTH)

    def cumulated(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Times and the share that does not exceed each, for plots."""
        used = np.flatnonzero(self._counts)
        shares = np.cumsum(self._counts[used]) / max(self._counts.sum(), 1)
        return _LEAST_S * np.exp((used + 0.5) * _BIN_WIDTH), shares
