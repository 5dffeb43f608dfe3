"""Whether files were replaced since they were last looked at. Reads none of them."""

from collections.abc import Sequence
from pathlib import Path

Signature = tuple[tuple[int, int, int], ...]


class FilesUnreadable(Exception):
    """A file cannot be looked at; the text names it."""


def signature_of(paths: Sequence[str]) -> Signature:
    """Changes when one of the files is replaced or written. Raises FilesUnreadable."""
    return tuple(_signature(path) for path in paths)


def _signature(path: str) -> tuple[int, int, int]:
    try:
        status = Path(path).stat()  # follows links: secrets are often mounted behind one
    except OSError as error:
        raise FilesUnreadable(f"{path}: {error.strerror}") from error
    return status.st_mtime_ns, status.st_size, status.st_ino
