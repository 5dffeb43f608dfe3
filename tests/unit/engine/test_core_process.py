"""The core as a process: its start, its end, its errors."""

import signal
import subprocess
import sys
from pathlib import Path

import zmq

from scheduler_svc.config import ServiceConfig, write_config
from tests.unit.engine.scripted_frontend import ScriptedFrontend

LIMIT_S = 30


def start(run_dir: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "scheduler_svc.engine", "--run-dir", str(run_dir)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_core_serves_until_sigterm_and_ends_at_once(tmp_path: Path) -> None:
    write_config(ServiceConfig(), tmp_path)
    with start(tmp_path) as core, zmq.Context() as context:
        frontend = ScriptedFrontend(context, f"ipc://{tmp_path}/engine.sock")
        frontend.hello()
        assert not frontend.statuses[0].is_accepting
        core.send_signal(signal.SIGTERM)
        _, errors = core.communicate(timeout=LIMIT_S)
        frontend.close()
    assert core.returncode == 0
    assert "SIGTERM" in errors
    assert "Traceback" not in errors


def test_run_folder_without_settings_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with start(tmp_path) as core:
        _, errors = core.communicate(timeout=LIMIT_S)
    assert core.returncode == 78
    assert str(tmp_path / "config.json") in errors
    assert "Traceback" not in errors


def test_broken_tokenizer_file_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("[]")
    write_config(ServiceConfig(model=str(tmp_path)), tmp_path)
    with start(tmp_path) as core:
        _, errors = core.communicate(timeout=LIMIT_S)
    assert core.returncode == 78
    assert str(tmp_path / "tokenizer.json") in errors


def test_run_folder_that_is_too_deep_for_sockets_is_an_error(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    write_config(ServiceConfig(), deep)
    with start(deep) as core:
        _, errors = core.communicate(timeout=LIMIT_S)
    assert core.returncode == 78
    assert "cannot bind ipc://" in errors
    assert "Traceback" not in errors
