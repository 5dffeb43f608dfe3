"""The Dockerfiles: checked by hadolint, and their commands tried without building an image."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from scheduler_svc.config import parse_flags
from scheduler_svc.metrics.http import MetricsServer
from tests.operations.conftest import ROOT
from tests.operations.dockerfiles import (
    Instruction,
    build_steps,
    copied,
    copied_paths,
    instructions,
    last,
)
from tools.fetch_wheel_programs import HADOLINT
from worker_svc.config import parse_flags as parse_worker_flags

SCHEDULER = ROOT / "deploy/scheduler.Dockerfile"
WORKER = ROOT / "deploy/worker.Dockerfile"
FILES = (SCHEDULER, WORKER)
MODULES = {
    SCHEDULER: "scheduler_svc.__main__, scheduler_svc.engine.build, octavo.cli.main",
    WORKER: "worker_svc.__main__, worker_svc.rank",
}
each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)


@each_file
def test_hadolint_finds_nothing(file: Path) -> None:
    done = subprocess.run(
        [str(HADOLINT.path), "--no-color", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "")


@each_file
def test_nobody_is_root_in_the_end(file: Path) -> None:
    assert last(file, "USER").rest == "10001:10001"


@each_file
def test_the_environment_is_made_by_the_script_that_ci_uses(file: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [step] = [one.words() for one in instructions(file) if "install.sh /opt" in one.rest]
    script, environment, extras = step[-3:]
    assert (script, environment) == ("tools/install.sh", "/opt/octavo/venv")
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    assert project["version"] == last(file, "ARG").rest.removeprefix("VERSION=")


@each_file
def test_what_is_copied_exists_and_passes_the_ignore_file(file: Path) -> None:
    sources = [source for source, _ in copied_paths(file)]
    ignore = file.with_name(file.name + ".dockerignore").read_text().splitlines()
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert ignore[1] == "*"
    assert sorted(line[1:] for line in ignore if line.startswith("!")) == sorted(sources)


@each_file
def test_the_code_in_the_image_needs_nothing_outside_it(file: Path, tmp_path: Path) -> None:
    for source, target in copied_paths(file):
        if (ROOT / source).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / source, tmp_path / target, ignore=ignore)
    # this environment leads to the checkout as well: that way is closed
    program = (
        f"import sys; sys.path = [p for p in sys.path if not p.startswith({str(ROOT)!r})"
        f" or 'site-packages' in p]; import {MODULES[file]}; print(sys.modules['octavo'].__file__)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{tmp_path / 'client'}"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(SCHEDULER, id="scheduler"),
        # downloads torch
        pytest.param(WORKER, id="worker", marks=pytest.mark.long("images")),
    ],
)
@pytest.mark.timeout(1800)
def test_the_build_stage_runs_step_by_step_and_its_service_starts(
    file: Path, tmp_path: Path
) -> None:
    """As the image has it: the packages are installed while the code is not there yet."""
    place = tmp_path / "octavo"
    steps = build_steps(file)
    assert [one.word for one in steps if one.word == "RUN"] == ["RUN", "RUN"]
    for step in steps:
        if step.word == "COPY":
            copy(step, place / "src")
        elif step.word == "RUN":
            script = re.sub(r"^(--mount=\S+ )+", "", step.rest).replace("/opt/octavo", str(place))
            subprocess.run(["sh", "-euc", script], cwd=place / "src", check=True, timeout=1700)
    command = last(file, "ENTRYPOINT").words()
    done = subprocess.run(
        [str(place / "venv/bin" / command[0]), *command[1:], "--help"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "--run-dir" in done.stdout


def copy(step: Instruction, source_folder: Path) -> None:
    """A COPY from the repository."""
    for source, target in copied(step):
        made = source_folder / target
        made.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, made, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, made)


def test_the_services_understand_what_the_images_start_them_with() -> None:
    assert last(SCHEDULER, "ENTRYPOINT").words() == ["python", "-m", "scheduler_svc"]
    scheduler = parse_flags(last(SCHEDULER, "CMD").words(), program="scheduler_svc")
    assert last(WORKER, "ENTRYPOINT").words() == ["python", "-m", "worker_svc"]
    worker = parse_worker_flags(last(WORKER, "CMD").words(), program="worker_svc")
    assert (scheduler.workers, scheduler.run_dir) == ("external", worker.run_dir)
    assert last(SCHEDULER, "EXPOSE").words() == [str(scheduler.port), str(scheduler.metrics_port)]


class Health:
    """Whether the served process says that it lives."""

    is_alive = True


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def port(health: Health) -> Iterator[int]:
    """A metrics port such as a scheduler's."""
    server = MetricsServer(
        CollectorRegistry(), is_alive=lambda: health.is_alive, not_ready=lambda: "loading"
    )
    yield server.start("127.0.0.1", 0)
    server.stop()


def is_healthy(port: int) -> bool:
    """What the image's health check says of a process on this port."""
    _, _, command = last(SCHEDULER, "HEALTHCHECK").rest.partition("CMD ")
    assert ":9464/" in command
    words = json.loads(command.replace(":9464/", f":{port}/"))
    done = subprocess.run(
        [sys.executable, *words[1:]], capture_output=True, check=False, timeout=60
    )
    return done.returncode == 0


def test_a_scheduler_that_lives_is_healthy_while_it_loads(port: int) -> None:
    assert is_healthy(port)


def test_a_stuck_scheduler_is_not_healthy(port: int, health: Health) -> None:
    health.is_alive = False
    assert not is_healthy(port)


def test_a_scheduler_that_is_gone_is_not_healthy() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        assert not is_healthy(int(reserved.getsockname()[1]))
