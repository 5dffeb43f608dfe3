"""How a worker's log lines look: text for people, JSON for collectors. Knows not what is logged."""

import json
import logging
import sys
import time
from collections.abc import Callable

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
PROGRESS_INTERVAL_S = 2.0


class JsonFormatter(logging.Formatter):
    """One JSON object a line; `extra` fields become members."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure_logging(*, process: str, level: str, form: str) -> None:
    """Sends all log lines of this process to stderr in one form; replaces earlier handlers."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter(f"%(asctime)s %(levelname)-7s {process:<12} %(message)s", "%H:%M:%S")
    handler.setFormatter(JsonFormatter(process) if form == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class ProgressLog:
    """Logs how far long work is, at most one line each `interval_s`, and its end."""

    def __init__(
        self,
        logger: logging.Logger,
        what: str,
        *,
        interval_s: float = PROGRESS_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._what = what
        self._interval_s = interval_s
        self._clock = clock
        self._last_line_at = clock()

    def __call__(self, bytes_done: int, bytes_total: int) -> None:
        """Notes that `bytes_done` of `bytes_total` are done."""
        now = self._clock()
        is_complete = bytes_done >= bytes_total
        if not is_complete and now - self._last_line_at < self._interval_s:
            return
        self._last_line_at = now
        percent = 100 if bytes_total == 0 else 100 * bytes_done // bytes_total
        self._logger.info(
            "%s: %d %% of %.0f MB",
            self._what,
            percent,
            bytes_total / 1e6,
            extra={"progress_done": bytes_done, "progress_total": bytes_total},
        )
