"""The private service: started, waited for, ended, and never left behind."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

import octavo
from octavo.private_folder import make_private_folder
from octavo.spawn import LocalService

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 60.0


def scripted(behaviour: str, *flags: str) -> LocalService:
    return LocalService(
        flags, command=(sys.executable, "-m", "tests.fakes.local_service", behaviour)
    )


@pytest.fixture(autouse=True)
def _private_temporary_folder(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("t")))


def folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).iterdir())


def test_a_started_service_answers_and_a_stopped_one_leaves_nothing() -> None:
    with scripted("serve", "--max-num-seqs", "8") as service:
        service.start(limit_s=LIMIT_S)
        with octavo.Client(service.target) as client:
            assert client.generate("a").text == "You said: a"
        (first_line,) = service.last_log_lines(1)
        assert "--max-num-seqs 8" in first_line
        assert "--run-dir" in first_line
        assert len(folders()) == 1
    assert not service.is_running()
    assert folders() == []


def test_the_newest_log_line_is_told_while_it_starts() -> None:
    def stop_at_the_weights(line: str) -> None:
        if line == "loading weights, 10 %":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scripted("stall").start(limit_s=LIMIT_S, on_progress=stop_at_the_weights)
    assert not children_named("local_service")
    assert folders() == []


def test_a_service_that_refuses_its_settings_is_quoted() -> None:
    with pytest.raises(octavo.LocalServiceFailed, match="power of two") as caught:
        scripted("refuse").start(limit_s=LIMIT_S)
    assert caught.value.exit_code == 2
    assert len(caught.value.log_lines) == 1
    assert folders() == []


def test_a_service_that_is_never_ready_is_ended() -> None:
    with pytest.raises(octavo.LocalServiceFailed, match="not ready within") as caught:
        scripted("stall").start(limit_s=0.2)
    assert caught.value.exit_code is None
    assert folders() == []
    assert not children_named("local_service")


def test_a_program_that_is_not_there_is_an_error() -> None:
    service = LocalService([], command=("/nowhere/python",))
    with pytest.raises(octavo.LocalServiceFailed):
        service.start(limit_s=LIMIT_S)
    assert folders() == []


def test_a_service_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.spawn._STOP_LIMIT_S", 0.5)
    with scripted("deaf") as service:
        service.start(limit_s=LIMIT_S)
    assert not children_named("local_service")


def test_a_service_dies_with_its_parent() -> None:
    program = (
        "import sys, time\n"
        "from tests.unit.sdk.test_spawn import scripted\n"
        "service = scripted('serve')\n"
        "service.start(limit_s=60)\n"
        "print(service.target, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": tempfile.gettempdir()},
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline().startswith("unix:")
        children = psutil.Process(parent.pid).children(recursive=True)
        assert len(children) == 1
        parent.send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(children, timeout=LIMIT_S)
        assert alive == []
    assert len(folders()) == 1
    make_private_folder().remove()
    assert folders() == []


def test_a_fork_of_the_owner_does_not_stop_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted("serve") as service:
        service.start(limit_s=LIMIT_S)
        with monkeypatch.context() as fork:
            fork.setattr("octavo.spawn.os.getpid", lambda: -1)
            service.stop()
        assert service.is_running()


def test_a_folder_in_use_is_not_swept() -> None:
    mine = make_private_folder()
    make_private_folder().remove()
    assert mine.path.is_dir()
    assert mine.path.stat().st_mode & 0o777 == 0o700
    mine.remove()
    assert folders() == []


def children_named(word: str) -> list[psutil.Process]:
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if any(word in argument for argument in process.cmdline())
    ]
