"""Children are started again with growing pauses, until they are stopped."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from scheduler_svc.supervisor.child import PERMANENT_EXIT, Child


@pytest.fixture
def make() -> Iterator[Callable[[str], Child]]:
    made: list[Child] = []

    def build(program: str) -> Child:
        child = Child(role="core", name="core", command=[sys.executable, "-c", program])
        made.append(child)
        return child

    yield build
    for child in made:
        child.end()


def _wait(child: Child) -> None:
    assert isinstance(child.process, subprocess.Popen)
    child.process.wait(timeout=30)


def test_a_death_is_noted_once_and_mended_after_a_growing_pause(
    make: Callable[[str], Child],
) -> None:
    child = make("raise SystemExit(3)")
    child.start(now=0.0)
    _wait(child)
    assert child.watch(now=1.0)
    assert not child.watch(now=1.05)  # backing off
    assert child.process is None
    child.watch(now=1.2)
    assert child.num_restarts == 1
    _wait(child)
    assert child.watch(now=2.0)
    child.watch(now=2.15)  # the pause has doubled
    assert child.process is None
    child.watch(now=2.25)
    assert child.num_restarts == 2


def test_a_permanent_error_is_not_retried(make: Callable[[str], Child]) -> None:
    child = make(f"raise SystemExit({PERMANENT_EXIT})")
    child.start(now=0.0)
    _wait(child)
    assert child.watch(now=1.0)
    assert "core" in child.permanent_error
    child.watch(now=100.0)
    assert child.process is None


def test_a_stopped_child_stays_away(make: Callable[[str], Child]) -> None:
    child = make("import time; time.sleep(60)")
    child.start(now=0.0)
    child.stop()
    _wait(child)
    assert child.watch(now=1.0)
    child.watch(now=100.0)
    assert not child.is_running()


def test_end_kills_what_ignores_the_polite_signal(make: Callable[[str], Child]) -> None:
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True)"
    child = make(program + "; time.sleep(60)")
    child.start(now=0.0)
    child.stop()
    child.end()
    assert child.pid == 0
