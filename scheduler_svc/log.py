"""How log lines look: text for people, JSON for collectors. Knows nothing of what is logged."""

import json
import logging
import math
import os
import sys
import time

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "process_role"}
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}


class JsonFormatter(logging.Formatter):
    """One JSON object a line; `extra` fields become members."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        line: dict[str, object] = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "process": self._role,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        extra = {n: value for n, value in _extra_fields(record).items() if n not in line}
        return json.dumps(line | extra, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """`time level process message name=value ...`, for a terminal.

    A message may quote what a client sent: whatever would start a new line or move the cursor is
    shown instead of done.
    """

    def __init__(self, role: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)-7s {role:<12} %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base's name
        """The record as one line, before any traceback."""
        fields = [f"{name}={_shown(value)}" for name, value in _extra_fields(record).items()]
        return " ".join([super().formatMessage(record), *fields]).translate(_CONTROLS)


def _extra_fields(record: logging.LogRecord) -> dict[str, object]:
    fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    return {name: _finite(value) for name, value in fields.items()}


def _finite(value: object) -> object:
    # JSON has no NaN and no infinities
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _shown(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    is_plain = text and not any(character in text for character in ' "=')
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def _utc(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


def configure_logging(*, role: str, level: str, form: str) -> None:
    """Sends all log lines of this process to stderr in one form; replaces earlier handlers.

    gRPC writes lines of its own, one for each failed handshake: strangers could fill the log.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # read with the first server or channel
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(role) if form == "json" else TextFormatter(role))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
