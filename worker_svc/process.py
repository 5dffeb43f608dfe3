"""Life and death of the worker's processes, and their signals. Knows no rank and no message."""

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Iterable, Mapping
from types import FrameType

PARENT_VARIABLE = "OCTAVO_PARENT_PID"
"""Set by a parent to its own process id in the environment of children that shall die with it."""

PERMANENT_EXIT = 78
"""Exit status (sysexits' EX_CONFIG) of an error that no restart can mend."""

_PR_SET_PDEATHSIG = 1


def child_environment(base: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child that calls `die_with_parent`."""
    return {**base, PARENT_VARIABLE: str(os.getpid())}


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent ends; exits if the parent is gone already.

    Nothing happens when no parent asked for it. The signal comes when the *thread* that spawned
    this process ends, so parents spawn from their main thread.
    """
    asked = os.environ.get(PARENT_VARIABLE, "")
    if not asked or sys.platform != "linux":
        return
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")
    if os.getppid() != int(asked):
        sys.exit("the process that started this one is gone")


class SignalInbox:
    """Collects signals for a loop that polls. Main thread only."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    @property
    def fd(self) -> int:
        """Becomes readable when a signal came."""
        return self._reader.fileno()

    def catch(self, numbers: Iterable[signal.Signals]) -> None:
        """From now on these signals are collected instead of acting."""
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, _do_nothing)

    def take(self) -> list[int]:
        """The signals that came since the last call, in order."""
        try:
            return list(self._reader.recv(4096))
        except BlockingIOError:
            return []


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Python writes the number to the wakeup descriptor; a handler must exist for that."""
