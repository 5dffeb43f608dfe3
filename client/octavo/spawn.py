"""A private service as a child of this process: starts it, waits until it serves, ends it.

Speaks to it through its command line, a unix socket and signals alone.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self

from octavo.errors import LocalServiceFailed
from octavo.health import HealthProbe
from octavo.private_folder import PrivateFolder, make_private_folder

SERVICE_COMMAND = (sys.executable, "-m", "scheduler_svc")

_POLL_S = 0.05
_SPAWN_LIMIT_S = 30.0
_STOP_LIMIT_S = 10.0
_NUM_LOG_LINES = 15
_USED_WRONGLY = 2
# time and level of a log line: whoever watches a service start knows the time
_STAMP = re.compile(r"^\d\d:\d\d:\d\d [A-Z]+ +")


class LocalService:
    """One service on a unix socket in a private folder. It ends with this process, in any case.

    A thread of its own starts the child and then lives as long as the child does: the kernel takes
    the end of the thread that started a process for the death of its parent.
    """

    def __init__(self, flags: Sequence[str], *, command: Sequence[str] = SERVICE_COMMAND) -> None:
        self._command = [*command, *flags]
        self._folder: PrivateFolder | None = None
        self._spawning: Future[subprocess.Popen[bytes]] | None = None
        self._is_stopped = threading.Event()
        self._owner_pid = os.getpid()

    @property
    def target(self) -> str:
        """Where it serves."""
        return f"unix:{self._path('grpc.sock')}"

    def start(self, *, limit_s: float, on_progress: Callable[[str], None] | None = None) -> None:
        """Returns once the service is ready for requests; tells its newest log line meanwhile.

        Raises LocalServiceFailed, with nothing left running, when the service ends by itself or is
        not ready in time.
        """
        self._folder = make_private_folder()
        try:
            self._spawn()
            self._wait_until_serving(limit_s, on_progress)
        except BaseException:
            self.stop()
            raise

    def is_running(self) -> bool:
        """Whether the process lives."""
        process = self._process()
        return process is not None and process.poll() is None

    def failure(self, message: str) -> LocalServiceFailed:
        """An error about this service, with how it ended and its last log lines."""
        exit_code = self._exit_code()
        # with wrong settings it says one thing, after a page of usage
        count = 1 if exit_code == _USED_WRONGLY else _NUM_LOG_LINES
        log_lines = self.last_log_lines(count)
        return LocalServiceFailed(message, exit_code=exit_code, log_lines=log_lines)

    def last_log_lines(self, count: int) -> list[str]:
        """The newest lines that the service wrote."""
        try:
            text = self._path("service.log").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-count:]

    def stop(self) -> None:
        """Ends the service, by force if it does not end when asked. Repeating it is harmless."""
        if os.getpid() != self._owner_pid:
            return  # a fork of the owner ends with copies of its finalizers
        try:
            process = self._process()  # also one whose start was interrupted
            if process is not None:
                self._end(process)
        finally:
            self._is_stopped.set()
            folder, self._folder = self._folder, None
            if folder is not None:
                folder.remove()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.terminate()
            process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            return
        finally:  # also when the wait is interrupted: nothing may stay behind
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(_STOP_LIMIT_S)

    def _wait_until_serving(
        self, limit_s: float, on_progress: Callable[[str], None] | None
    ) -> None:
        end = time.monotonic() + limit_s
        probe = HealthProbe(self.target)
        try:
            while not (self._path("grpc.sock").exists() and probe.is_serving()):
                if not self.is_running():
                    raise self.failure(f"the service ended before it was ready ({self._status()})")
                if time.monotonic() > end:
                    raise self.failure(f"the service was not ready within {limit_s:g} s")
                if on_progress is not None:
                    on_progress(_STAMP.sub("", "".join(self.last_log_lines(1)), count=1))
                time.sleep(_POLL_S)
        finally:
            probe.close()

    def _status(self) -> str:
        code = self._exit_code()
        return f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"

    def _exit_code(self) -> int | None:
        process = self._process()
        return process.poll() if process is not None else None

    def _process(self) -> subprocess.Popen[bytes] | None:
        """The child; None when there never was one."""
        if self._spawning is None:
            return None
        try:
            return self._spawning.result(_SPAWN_LIMIT_S)
        except OSError:
            return None

    def _spawn(self) -> None:
        self._spawning = Future()
        threading.Thread(
            target=self._keep, args=(self._spawning,), name="octavo-local-service", daemon=True
        ).start()
        try:
            self._spawning.result(_SPAWN_LIMIT_S)
        except OSError as error:
            raise LocalServiceFailed(f"cannot start {self._command[0]}: {error}") from error

    def _keep(self, spawning: Future[subprocess.Popen[bytes]]) -> None:
        try:
            spawning.set_result(self._popen())
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            spawning.set_exception(error)
            return
        self._is_stopped.wait()

    def _popen(self) -> subprocess.Popen[bytes]:
        tie = (sys.executable, "-m", "octavo.tied_child", str(os.getpid()))
        with self._path("service.log").open("wb") as log:
            return subprocess.Popen(
                [*tie, *self._command, *self._own_flags()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C in the terminal reaches this process, which then ends it
            )

    def _own_flags(self) -> list[str]:
        return [
            *("--unix-socket", str(self._path("grpc.sock"))),
            *("--run-dir", str(self._path("run"))),
            *("--admin-port", "0", "--metrics-port", "0"),
            *("--drain-limit", "1"),  # whoever stops it waits for no answer any more
        ]

    def _path(self, name: str) -> Path:
        assert self._folder is not None, "the service was started"
        return self._folder.path / name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
