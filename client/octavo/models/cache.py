"""The cache folder on disk: where it is, who may write, and how a folder appears all at once.

Knows nothing of what the folders hold.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from octavo.models.errors import ModelBusy, ModelError
from octavo.models.progress import Progress

_POLL_S = 0.1


def cache_root(cache_dir: Path | None = None) -> Path:
    """Return the cache folder: the argument, else $OCTAVO_CACHE, else ~/.cache/octavo."""
    configured = os.environ.get("OCTAVO_CACHE", "")
    chosen = cache_dir or (Path(configured) if configured else Path("~/.cache/octavo"))
    return chosen.expanduser().absolute()


def make_folder(path: Path) -> Path:
    """Create the folder and its parents, or say which one cannot be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"cannot create the cache folder {path}: {error.strerror}"
            " (set OCTAVO_CACHE to a folder that can be written)"
        ) from error
    return path


@contextmanager
def exclusive(lock: Path, *, wait_limit_s: float, progress: Progress) -> Iterator[None]:
    """Hold the lock file alone; the kernel frees it when this process ends in any way."""
    make_folder(lock.parent)
    with lock.open("a") as handle:
        _wait_for_lock(handle.fileno(), lock, wait_limit_s, progress)
        yield


def _wait_for_lock(descriptor: int, lock: Path, wait_limit_s: float, progress: Progress) -> None:
    deadline = time.monotonic() + wait_limit_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ModelBusy(lock, wait_limit_s) from None
        progress("wait", 0, 0)
        time.sleep(_POLL_S)


@contextmanager
def appearing_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `target` when the block ends without an error.

    The caller holds the target's lock. A half-made folder of an earlier, killed attempt is
    removed first; an existing `target` is replaced.
    """
    make_folder(target.parent)
    prefix = f".{target.name}.making-"
    for stale in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(stale)
    making = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        yield making
        _publish(making, target)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _publish(making: Path, target: Path) -> None:
    making.chmod(0o755)
    for path in [*making.rglob("*"), making]:
        _flush_to_disk(path)
    if target.exists():
        # A rename cannot replace a folder with files in it: move the old one into the swept name.
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}.making-", dir=target.parent))
        target.rename(old / "old")
        making.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        making.rename(target)
    _flush_to_disk(target.parent)


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
