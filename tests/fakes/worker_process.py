"""A worker supervisor with its ranks as real processes, for a test. Knows no core."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
LIMIT_S = 20.0


class Worker:
    """A worker supervisor's process."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def ranks(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def wait(self) -> int:
        return self.process.wait(timeout=LIMIT_S)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()


@contextmanager
def running_worker(
    run_dir: Path, flags: Sequence[str] = (), *, module: str = "tests.fakes.hash_worker"
) -> Iterator[Worker]:
    """A worker supervisor; nothing of it is left afterwards."""
    log = run_dir / "worker.log"
    temporary = run_dir / "tmp"
    temporary.mkdir(exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, "--run-dir", str(run_dir), *flags],
            stdout=output,
            stderr=output,
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
    worker = Worker(process, log)
    left: list[psutil.Process] = []
    try:
        yield worker
    finally:
        if process.poll() is None:
            left = worker.ranks()
            process.kill()
        process.wait()
        wait_until(lambda: all(map(is_gone, left)))


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)


def is_gone(process: psutil.Process) -> bool:
    """Whether it ended; a container's first process may be slow to bury it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
