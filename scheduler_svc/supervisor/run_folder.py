"""The private folder in which a replica's processes meet. Knows nothing of the sockets in it.

A lock on the folder lives as long as its supervisor, so that the next start can tell a stale
folder from one in use.
"""

import fcntl
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "octavo-run-"
_LOCK = "lock"


class RunFolderInUse(Exception):
    """Another replica lives in the folder."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A folder of mode 0700 with its lock held."""

    path: Path
    lock: int
    is_own: bool

    def remove(self) -> None:
        """Deletes the folder, or empties it when it was given; releases the lock."""
        if self.is_own:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            _empty(self.path)
        os.close(self.lock)


def open_run_folder(configured: str) -> RunFolder:
    """Makes a new private folder, or takes the configured one; sweeps stale ones first.

    Raises RunFolderInUse when another replica holds it, OSError when it cannot be made.
    """
    sweep_stale_folders(Path(tempfile.gettempdir()))
    if not configured:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        return RunFolder(path=path, lock=_lock_new(path), is_own=True)
    path = Path(configured).absolute()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = _lock(path)
    _empty(path)
    return RunFolder(path=path, lock=lock, is_own=False)


def sweep_stale_folders(parent: Path) -> list[Path]:
    """Deletes folders of replicas that are gone: nobody holds their lock. Returns those."""
    swept = []
    for path in parent.glob(_PREFIX + "*"):
        try:
            lock = os.open(path / _LOCK, os.O_RDWR)
        except OSError:
            continue  # another user's, or about to be locked for the first time
        if _takes_lock(lock):
            shutil.rmtree(path, ignore_errors=True)
            swept.append(path)
        os.close(lock)
    return swept


def _lock(path: Path) -> int:
    # not inherited by children (O_CLOEXEC is Python's default), so the lock ends with this process
    descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    if not _takes_lock(descriptor):
        os.close(descriptor)
        raise RunFolderInUse(f"--run-dir {path} is in use by another replica")
    return descriptor


def _lock_new(path: Path) -> int:
    # locked before it has its name, so that a sweep at the same moment never finds it unlocked
    unnamed = path / (_LOCK + ".new")
    descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    unnamed.rename(path / _LOCK)
    return descriptor


def _takes_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _empty(path: Path) -> None:
    for entry in path.iterdir():
        if entry.name == _LOCK:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
