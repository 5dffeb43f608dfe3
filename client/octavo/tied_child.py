"""`python -m octavo.tied_child PARENT COMMAND...`: becomes COMMAND, which ends when PARENT does.

Asks the kernel for a SIGTERM at the parent's death, then replaces itself by the command: the wish
survives that. Done here, in a process with one thread, because it is not safe between fork and exec
of a process with many. Knows nothing of the command.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Ties this process to its parent and becomes the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        sys.exit(f"cannot be tied to the parent process: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:  # it died before the wish was known
        sys.exit("the parent process is gone")
    os.execv(command[0], command)  # noqa: S606 - there is no shell, and none is wanted


if __name__ == "__main__":
    main()
