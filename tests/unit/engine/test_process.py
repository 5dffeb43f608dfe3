"""A child does not outlive the process that started it."""

import os
import signal
import subprocess
import sys
import time

import psutil

from scheduler_svc.process import PARENT_VARIABLE, child_environment

CHILD = (
    "from scheduler_svc.process import die_with_parent; die_with_parent();"
    "print('ready', flush=True); import time; time.sleep(60)"
)
PARENT = (
    "import subprocess, sys, time;"
    "child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE);"
    "child.stdout.readline(); print(child.pid, flush=True); time.sleep(60)"
)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_child_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
        parent.send_signal(signal.SIGKILL)
        parent.wait(timeout=10)
        end = time.monotonic() + 10
        while not is_gone(pid) and time.monotonic() < end:
            time.sleep(0.01)
        assert is_gone(pid)


def test_child_of_a_parent_that_is_gone_already_exits() -> None:
    # another process than the real parent stands for one that died before the child could look
    environment = {**os.environ, PARENT_VARIABLE: "1"}
    ended = subprocess.run(
        [sys.executable, "-c", CHILD],
        env=environment,
        check=False,
        capture_output=True,
        timeout=30,
        text=True,
    )
    assert ended.returncode == 1
    assert "is gone" in ended.stderr
    assert ended.stdout == ""


def test_environment_names_this_process_as_parent() -> None:
    assert child_environment({"A": "b"}) == {"A": "b", PARENT_VARIABLE: str(os.getpid())}
