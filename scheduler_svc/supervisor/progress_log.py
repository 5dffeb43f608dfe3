"""Long work as log lines: one when a stage begins, one for each quarter. Draws nothing."""

import logging

_LOG = logging.getLogger(__name__)
_STEPS = 4


class ProgressLog:
    """An `octavo.models.progress.Progress`."""

    def __init__(self) -> None:
        self._stage = ""
        self._last_step = -1

    def __call__(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """Logs the stage when it is new or a quarter further."""
        step = _STEPS * done_bytes // total_bytes if total_bytes else 0
        if (stage, step) == (self._stage, self._last_step):
            return
        self._stage, self._last_step = stage, step
        share = f", {100 * step // _STEPS} % of {total_bytes / 1e6:.0f} MB" if total_bytes else ""
        _LOG.info("model: %s%s", stage, share)
