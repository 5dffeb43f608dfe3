"""Ties a process to the life of the one that started it. Knows nothing of what either does.

Imports nothing heavy: a child calls this before anything else, while it cannot yet be orphaned for
long.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Mapping

PARENT_VARIABLE = "OCTAVO_PARENT_PID"
"""Set by the parent to its own process id, so that a child can see that it was orphaned already."""

_PR_SET_PDEATHSIG = 1


def child_environment(base: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child of this process that calls `die_with_parent`."""
    return {**base, PARENT_VARIABLE: str(os.getpid())}


def die_with_parent() -> None:
    """Has the kernel kill this process when the thread that started it ends.

    Exits if that is over already. Parents start children from their main thread because of this.
    Does nothing where there is no Linux.
    """
    if sys.platform != "linux":
        return
    parent = int(os.environ.get(PARENT_VARIABLE) or os.getppid())
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone")
