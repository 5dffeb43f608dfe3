"""A private folder in which the ranks of one supervisor meet and leave word. Knows no rank.

It lies apart from the run folder, which the service empties when it starts. A lock lives as long as
the supervisor, so that a later one can tell a stale folder from one in use.
"""

import fcntl
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_PREFIX = "octavo-ranks-"
_LOCK = "lock"


@dataclass(frozen=True, slots=True)
class RankFolder:
    """A folder of mode 0700 whose lock this process holds."""

    path: Path
    lock: int

    @classmethod
    def create(cls, parent: Path | None = None) -> Self:
        """Makes a new folder in the temporary folder, or in `parent`; sweeps stale ones first."""
        home = parent or Path(tempfile.gettempdir())
        _sweep(home)
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=home))
        # locked before it has its name: a sweep at this moment must not find it unlocked
        unnamed = path / (_LOCK + ".new")
        lock = os.open(unnamed, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        unnamed.rename(path / _LOCK)
        return cls(path, lock)

    def rendezvous(self, incarnation: int) -> Path:
        """The file in which the ranks of one start find each other."""
        return self.path / f"rendezvous-{incarnation}"

    def error_file(self, incarnation: int, rank: int) -> Path:
        """The file in which a rank leaves one line about its end."""
        return self.path / f"error-{incarnation}-{rank}"

    def forget(self, incarnation: int) -> None:
        """Deletes what one start left."""
        for path in self.path.glob(f"*-{incarnation}*"):
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Deletes the folder and releases the lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def _sweep(parent: Path) -> None:
    """Deletes folders of supervisors that are gone: nobody holds their lock."""
    for path in parent.glob(_PREFIX + "*"):
        try:
            lock = os.open(path / _LOCK, os.O_RDWR)
        except OSError:
            continue  # another user's, or about to be locked for the first time
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass  # in use
        finally:
            os.close(lock)
