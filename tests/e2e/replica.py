"""A whole replica of real processes for a test: starts it, finds its ports, ends it."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from scheduler_svc.addresses import Addresses, read_addresses

ROOT = Path(__file__).resolve().parents[2]
READY_LIMIT_S = 90.0
HASH_WORKER = "tests.fakes.hash_worker"


class NotReady(AssertionError):
    """The replica did not become ready; the text holds its log."""


@dataclass
class Replica:
    """A running replica; `log` holds what its processes wrote."""

    run_dir: Path
    log_path: Path
    serve_command: Sequence[str]
    supervisor: subprocess.Popen[bytes]
    workers_command: Sequence[str] = ()
    workers: subprocess.Popen[bytes] | None = None

    @property
    def addresses(self) -> Addresses:
        """Where it listens."""
        return read_addresses(self.run_dir)

    @property
    def target(self) -> str:
        """The inference address."""
        return self.addresses.inference

    def log(self) -> str:
        """Everything logged so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of an HTTP path on the metrics port."""
        try:
            with urllib.request.urlopen(
                f"http://{self.addresses.metrics}{path}", timeout=5
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def wait_ready(self, *, limit_s: float = READY_LIMIT_S) -> None:
        """Returns once /readyz says so; raises NotReady with the log when it does not in time."""
        wait_until(self._is_ready, limit_s=limit_s, otherwise=self._explain)

    def processes(self) -> list[psutil.Process]:
        """Every living process of the replica."""
        roots = [self.supervisor, *([self.workers] if self.workers else [])]
        found = []
        for root in roots:
            try:
                process = psutil.Process(root.pid)
                found += [process, *process.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
        return found

    def process(self, module: str) -> psutil.Process:
        """The one process whose command line holds a word, such as scheduler_svc.engine."""
        found = [p for p in self.processes() if module in p.cmdline()]
        assert len(found) == 1, f"{module}: {found}"
        return found[0]

    def stop(self, *, limit_s: float = 20.0) -> int:
        """Ends the replica as an operator would; returns the supervisor's exit status."""
        self.supervisor.send_signal(signal.SIGTERM)
        status = self.supervisor.wait(timeout=limit_s)
        if self.workers is not None:
            self.workers.send_signal(signal.SIGTERM)
            self.workers.wait(timeout=limit_s)
        return status

    def start_again(self) -> None:
        """Starts what has ended of it, as what runs containers does; give it a port of its own."""
        if self.supervisor.poll() is not None:
            self.supervisor = _spawn(self.serve_command, self.log_path)
        if self.workers is not None and self.workers.poll() is not None:
            self.workers = _spawn(self.workers_command, self.log_path)

    def end(self) -> None:
        """Makes sure that nothing is left."""
        for process in reversed(self.processes()):
            if process.is_running():
                process.kill()
        self.supervisor.wait()
        if self.workers is not None:
            self.workers.wait()

    def _is_ready(self) -> bool:
        if self.supervisor.poll() is not None:
            raise NotReady(self._explain())
        try:
            return self.get("/readyz")[0] == 200
        except (OSError, FileNotFoundError):
            return False

    def _explain(self) -> str:
        return f"not ready; status {self.supervisor.poll()}; its log:\n{self.log()}"


def wait_until(
    condition: Callable[[], bool], *, limit_s: float, otherwise: Callable[[], str] = str
) -> None:
    """Returns once `condition()` holds; raises NotReady with `otherwise()` after the limit."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise NotReady(otherwise())
        time.sleep(0.02)


@contextmanager
def running_replica(
    model: Path | str,
    *,
    flags: Sequence[str] = (),
    hash_worker: Sequence[str] | None = None,
    worker_module: str = HASH_WORKER,
    wait: bool = True,
) -> Iterator[Replica]:
    """A replica on free ports; with `hash_worker` its workers are fakes with these flags.

    `worker_module` is another program for these workers.
    """
    with tempfile.TemporaryDirectory(prefix="octavo-e2e-") as folder:
        replica = start_replica(
            model,
            Path(folder),
            flags=flags,
            hash_worker=hash_worker,
            worker_module=worker_module,
        )
        try:
            if wait:
                replica.wait_ready()
            yield replica
        finally:
            replica.end()


def start_replica(
    model: Path | str,
    folder: Path,
    *,
    flags: Sequence[str] = (),
    hash_worker: Sequence[str] | None = None,
    worker_module: str = HASH_WORKER,
) -> Replica:
    """Starts a replica with its run folder and log in `folder`."""
    run_dir, log_path = folder / "run", folder / "log"
    command = [
        *(sys.executable, "-m", "scheduler_svc", "--model", str(model), "--run-dir", str(run_dir)),
        *("--port", "0", "--admin-port", "0", "--metrics-port", "0"),
        *("--workers", "local" if hash_worker is None else "external"),
        *flags,
    ]
    replica = Replica(
        run_dir=run_dir,
        log_path=log_path,
        serve_command=command,
        supervisor=_spawn(command, log_path),
    )
    if hash_worker is not None:
        fake = (sys.executable, "-m", worker_module, "--run-dir", str(run_dir))
        replica.workers_command = [*fake, "--model", str(model), *hash_worker]
        replica.workers = _spawn(replica.workers_command, log_path)
    return replica


def _spawn(command: Sequence[str], log_path: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    paths = [str(ROOT), str(ROOT / "client"), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    with log_path.open("ab") as log:
        return subprocess.Popen(
            list(command), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment
        )
