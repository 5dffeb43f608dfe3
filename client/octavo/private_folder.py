"""A temporary folder that only its process uses, and that the next start removes if need be.

Knows nothing of what is kept in it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "octavo-local-"
_LOCK = "lock"
_SHORT = "/tmp"  # noqa: S108 - only for a folder of mode 0700 with a random name
# the path of a unix socket may have 107 bytes, and the services put theirs into this folder
_LONGEST_PATH_BYTES = 64


@dataclass(frozen=True, slots=True)
class PrivateFolder:
    """A folder of mode 0700 with its lock held until it is removed or this process ends."""

    path: Path
    lock: int

    def remove(self) -> None:
        """Deletes the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def make_private_folder() -> PrivateFolder:
    """A new folder; removes those of processes that are gone first."""
    parent = _parent()
    _sweep(parent)
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    # locked before it has its name, so that a sweep at the same moment never finds it unlocked
    unnamed = path / (_LOCK + ".new")
    lock = os.open(unnamed, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    unnamed.rename(path / _LOCK)
    return PrivateFolder(path=path, lock=lock)


def _parent() -> Path:
    configured = Path(tempfile.gettempdir())
    return configured if len(bytes(configured)) <= _LONGEST_PATH_BYTES else Path(_SHORT)


def _sweep(parent: Path) -> None:
    for path in parent.glob(_PREFIX + "*"):
        try:
            lock = os.open(path / _LOCK, os.O_RDWR)
        except OSError:
            continue  # another user's, or about to be locked for the first time
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            continue  # its process lives
        finally:
            os.close(lock)
