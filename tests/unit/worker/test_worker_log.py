"""Log lines of a worker's processes."""

import json
import logging
from collections.abc import Iterator

import pytest

from worker_svc.log import ProgressLog, configure_logging


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_carry_the_process_and_extra_fields(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(process="rank-3", level="info", form="json")
    logging.getLogger("x").info("did %s", "that", extra={"step": 7})
    logging.getLogger("x").debug("hidden")
    [line] = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert (told["process"], told["level"], told["message"]) == ("rank-3", "info", "did that")
    assert told["step"] == 7


def test_text_lines_name_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(process="rank-3", level="warning", form="text")
    logging.getLogger("x").info("hidden")
    logging.getLogger("x").warning("shown")
    [line] = capsys.readouterr().err.splitlines()
    assert "WARNING rank-3" in line
    assert line.endswith("shown")


def test_progress_is_logged_at_intervals_and_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    progress = ProgressLog(logging.getLogger("load"), "loading", clock=lambda: now)
    with caplog.at_level(logging.INFO):
        for done in range(101):
            now = 0.05 * done
            progress(done * 10**6, 100 * 10**6)
    assert [record.getMessage() for record in caplog.records] == [
        "loading: 40 % of 100 MB",
        "loading: 80 % of 100 MB",
        "loading: 100 % of 100 MB",
    ]
