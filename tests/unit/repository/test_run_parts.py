"""The parts runner over a small Makefile of its own. Knows nothing of the real parts."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUNNER = Path(__file__).resolve().parents[3] / "tools/run_parts.py"
MAKEFILE = """
good: ; @echo good ran
bad: ; @echo bad ran; exit 3
meets_left: ; @touch left; until [ -e right ]; do sleep 0.01; done; echo left saw right
meets_right: ; @touch right; until [ -e left ]; do sleep 0.01; done; echo right saw left
endless: ; @sleep 600 & echo $$! > endless.pid; wait
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    return tmp_path


def run_parts(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUNNER), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_all_parts_well_is_success(folder: Path) -> None:
    done = run_parts(folder, "good", "good")
    assert done.returncode == 0
    assert done.stdout.count("good ran") == 2


def test_a_failed_part_is_named_and_the_others_still_run(folder: Path) -> None:
    done = run_parts(folder, "bad", "good")
    assert done.returncode == 1
    assert "good ran" in done.stdout
    table = done.stdout.splitlines()[-2:]
    assert "bad" in table[0]
    assert "FAILED" in table[0]
    assert table[1].endswith("ok")


def test_a_part_over_its_limit_is_ended_with_all_it_started(folder: Path) -> None:
    done = run_parts(folder, "--limit-s", "1", "endless")
    assert done.returncode == 1
    assert "over its limit of 1 s" in done.stdout
    assert not is_running(int((folder / "endless.pid").read_text()))


def test_parts_joined_by_a_plus_run_side_by_side(folder: Path) -> None:
    done = run_parts(folder, "--limit-s", "20", "meets_left+meets_right+bad", "good")
    assert done.returncode == 1
    for text in ("left saw right", "right saw left", "bad ran", "good ran"):
        assert text in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()[-4:]] == [
        *("meets_left", "meets_right", "bad", "good")
    ]


def test_an_interrupt_ends_what_runs_side_by_side(folder: Path) -> None:
    command = [sys.executable, str(RUNNER), "endless+good"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as runner:
        wait_for(folder / "endless.pid")
        runner.send_signal(signal.SIGINT)
        assert runner.wait(timeout=30) != 0
    assert not is_running(int((folder / "endless.pid").read_text()))


def wait_for(path: Path) -> None:
    """Returns once the file holds something."""
    end = time.monotonic() + 30
    while not path.exists() or not path.read_text().strip():
        assert time.monotonic() < end, f"{path} never came"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether a process exists and is more than an entry waiting to be reaped."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"
