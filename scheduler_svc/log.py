"""How log lines look: text for people, JSON for collectors. Knows nothing of what is logged."""

import json
import logging
import sys
import time

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "process_role"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line; `extra` fields become members."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        line = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "process": self._role,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """`time level process message`, for a terminal."""

    def __init__(self, role: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)-7s {role:<12} %(message)s", "%H:%M:%S")


def _utc(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


def configure_logging(*, role: str, level: str, form: str) -> None:
    """Sends all log lines of this process to stderr in one form; replaces earlier handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(role) if form == "json" else TextFormatter(role))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
