"""Log lines of the service's processes."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler_svc.log import configure_logging


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(
    capsys: pytest.CaptureFixture[str], form: str, message: str, **fields: object
) -> list[str]:
    """The lines that one message makes."""
    configure_logging(role="frontend-0", level="info", form=form)
    logging.getLogger("octavo.x").info(message, extra=fields)
    return capsys.readouterr().err.splitlines()


def told(capsys: pytest.CaptureFixture[str], message: str, **fields: object) -> dict[str, Any]:
    """What one message makes as JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    [line] = logged(capsys, "json", message, **fields)
    return dict(json.loads(line, parse_constant=refuse))


def test_a_json_line_carries_the_process_and_extra_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = told(capsys, "ended", request_id="r-1", num_tokens=7, total_ms=1.5)
    assert (line["process"], line["level"], line["message"]) == ("frontend-0", "info", "ended")
    assert (line["request_id"], line["num_tokens"], line["total_ms"]) == ("r-1", 7, 1.5)
    assert line["time"].endswith("Z")


def test_a_json_line_stays_json_whatever_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    line = told(capsys, "a\nb", rate=float("nan"), limit=float("inf"), what={1, 2})
    assert line["message"] == "a\nb"
    assert (line["rate"], line["limit"]) == ("nan", "inf")


def test_an_extra_field_never_replaces_a_standard_one(capsys: pytest.CaptureFixture[str]) -> None:
    line = told(capsys, "ended", level="critical", time="never")
    assert line["level"] == "info"
    assert line["time"] != "never"


def test_a_text_line_ends_with_the_extra_fields(capsys: pytest.CaptureFixture[str]) -> None:
    [line] = logged(capsys, "text", "ended", tenant="a b", total_ms=12.34567, reason="")
    assert "INFO" in line
    assert line.endswith('frontend-0   ended tenant="a b" total_ms=12.3457 reason=""')


def test_a_client_cannot_forge_a_line_or_move_the_cursor(
    capsys: pytest.CaptureFixture[str],
) -> None:
    [line] = logged(capsys, "text", "id r\n12:00:00 ERROR", tenant="\x1b[2J\r\x9b")
    assert "r\\x0a12:00:00 ERROR" in line
    assert line.isprintable()


def test_a_traceback_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(role="core", level="info", form="text")
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("x").exception("failed")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("failed")
    assert lines[1].startswith("Traceback")
    assert lines[-1] == "ValueError: broken"
