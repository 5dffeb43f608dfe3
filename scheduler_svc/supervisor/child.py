"""One child process and its restarts. Knows nothing of what the child does."""

import logging
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_svc.process import child_environment

_LOG = logging.getLogger(__name__)

# sysexits' EX_CONFIG: starting again cannot help
PERMANENT_EXIT = 78
_FIRST_BACKOFF_S = 0.1
_LAST_BACKOFF_S = 10.0
_STABLE_AFTER_S = 30.0


@dataclass(slots=True)
class Child:
    """A child that is started again, with growing pauses, until it is stopped.

    Spawned from the supervisor's main thread only: the parent-death signal of a child fires when
    the thread that spawned it ends.
    """

    role: str
    name: str
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    num_restarts: int = 0
    permanent_error: str = ""
    _is_wanted: bool = True
    started_at: float = 0.0
    _start_due_at: float = 0.0
    _backoff_s: float = _FIRST_BACKOFF_S

    @property
    def pid(self) -> int:
        """The process id, 0 while it is not running."""
        return self.process.pid if self.process is not None else 0

    def start(self, now: float) -> None:
        """Starts the process in a process group of its own, so that Ctrl-C passes it by."""
        self.process = subprocess.Popen(
            list(self.command),
            stdin=subprocess.DEVNULL,
            process_group=0,
            env=child_environment(os.environ),
        )
        self.started_at = now
        _LOG.debug("%s started as process %d", self.name, self.process.pid)

    def watch(self, now: float) -> bool:
        """Notes a death, starts again when due; returns whether it died since the last look."""
        if self.process is None:
            if self._is_wanted and not self.permanent_error and now >= self._start_due_at:
                self.num_restarts += 1
                self.start(now)
            return False
        status = self.process.poll()
        if status is None:
            return False
        self.process = None
        self._note_death(status, now)
        return True

    def kill(self, reason: str) -> None:
        """Kills the process with its group; `watch` starts it again."""
        if self.process is not None:
            _LOG.warning("killing %s: %s", self.name, reason)
            self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """Asks the process to end; it is not started again."""
        self._is_wanted = False
        self._signal(signal.SIGTERM)

    def end(self) -> None:
        """Makes sure that the process is gone."""
        self._is_wanted = False
        if self.process is not None:
            self._signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def is_running(self) -> bool:
        """Whether the process exists."""
        return self.process is not None and self.process.poll() is None

    def _note_death(self, status: int, now: float) -> None:
        how = f"signal {-status}" if status < 0 else f"status {status}"
        if not self._is_wanted:
            _LOG.debug("%s ended with %s", self.name, how)
            return
        if status == PERMANENT_EXIT:
            self.permanent_error = f"{self.name} cannot run; its last log line says why"
            return
        if now - self.started_at > _STABLE_AFTER_S:
            self._backoff_s = _FIRST_BACKOFF_S
        self._start_due_at = now + self._backoff_s
        _LOG.warning("%s ended with %s; starting again in %.1f s", self.name, how, self._backoff_s)
        self._backoff_s = min(2 * self._backoff_s, _LAST_BACKOFF_S)

    def _signal(self, number: signal.Signals) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        if number is signal.SIGKILL:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
