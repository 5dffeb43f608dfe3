"""`octavo serve` and `octavo demo` over a scripted service in the real one's place."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 60.0
PRINTS_ITS_FLAGS = "import sys\nprint(*sys.argv[1:], sep='\\n')\n"
ACTS = """
import sys
from tests.fakes.local_service import main
sys.exit(main([{!r}, *sys.argv[1:]]))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a model in it, where a scripted service can be put."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "tmp").mkdir()
    for package in ("scheduler_svc", "torch"):  # the commands look for torch, and load it not
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    return tmp_path


def put_service(place: Path, program: str) -> None:
    (place / "scheduler_svc" / "__main__.py").write_text(program)


def start(place: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "octavo.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place,
        env={**os.environ, "PYTHONPATH": f"{place}:{ROOT}", "TMPDIR": str(place / "tmp")},
        start_new_session=True,
    )


def run_to_end(place: Path, *arguments: str) -> tuple[int, str, str]:
    with start(place, *arguments) as process:
        output, errors = process.communicate(timeout=LIMIT_S)
        return process.returncode, output, errors


def test_serve_becomes_the_service_with_the_models_folder_and_name(place: Path) -> None:
    put_service(place, PRINTS_ITS_FLAGS)
    status, output, _ = run_to_end(
        place, "serve", "--model", "model", "--port", "0", "--enforce-eager"
    )
    assert status == 0
    assert output.splitlines() == [
        *("--model", "model", "--port", "0", "--enforce-eager"),
        *("--model", str(place / "model"), "--served-model-name", "model"),
    ]


def test_serve_keeps_the_name_that_it_is_given(place: Path) -> None:
    put_service(place, PRINTS_ITS_FLAGS)
    _, output, _ = run_to_end(place, "serve", "--model=model", "--served-model-name", "mine")
    assert output.count("--served-model-name") == 1


def test_serve_says_which_model_is_not_there(place: Path) -> None:
    put_service(place, PRINTS_ITS_FLAGS)
    status, output, errors = run_to_end(place, "serve", "--model", "./nowhere")
    assert (status, output) == (1, "")
    assert "'./nowhere' not found" in errors


def test_serve_ends_with_the_services_status(place: Path) -> None:
    put_service(place, "raise SystemExit(2)")
    assert run_to_end(place, "serve", "--model", "model")[0] == 2


def test_demo_answers_and_leaves_nothing(place: Path) -> None:
    put_service(place, ACTS.format("serve"))
    status, output, errors = run_to_end(place, "demo", "--model", "model", "Hello there")
    assert (status, output) == (0, "You said: Hello there\n")
    assert "first token after" in errors
    assert list((place / "tmp").iterdir()) == []


def test_demo_quotes_a_service_that_does_not_start(place: Path) -> None:
    put_service(place, ACTS.format("refuse"))
    status, output, errors = run_to_end(place, "demo", "--model", "model", "Hello")
    assert (status, output) == (1, "")
    assert "power of two" in errors
    assert "octavo serve --log-level debug" in errors
    assert "Traceback" not in errors


def test_demo_gives_up_on_a_service_that_is_never_ready(place: Path) -> None:
    put_service(place, ACTS.format("stall"))
    status, _, errors = run_to_end(
        place, "demo", "--model", "model", "--start-limit", "0.2", "Hello"
    )
    assert status == 1
    assert "not ready within 0.2 s" in errors
    assert list((place / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_demo_stops_everything_when_it_is_stopped(
    place: Path, number: signal.Signals, status: int
) -> None:
    put_service(place, ACTS.format("stall"))
    with start(place, "demo", "--model", "model", "Hello") as process:
        service = wait_for_child(process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == status
    assert "Traceback" not in errors
    assert not service.is_running()
    assert list((place / "tmp").iterdir()) == []


def wait_for_child(process: subprocess.Popen[str]) -> psutil.Process:
    """The process that a command starts, once there is one."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        for child in psutil.Process(process.pid).children():
            return child
        time.sleep(0.02)
    raise AssertionError("the command started nothing")
