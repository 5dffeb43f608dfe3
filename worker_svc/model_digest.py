"""A short name for what a model folder holds. Knows no format but config.json's name."""

from pathlib import Path

import xxhash

from worker_svc.models.errors import UnreadableFileError

_CONFIG = "config.json"


def model_digest(folder: Path) -> bytes:
    """xxh3-128 over the names and sizes of the folder's files and the content of config.json.

    Weights are not read: files of equal names and sizes beside an equal config count as the same.
    Raises UnreadableFileError.
    """
    digest = xxhash.xxh3_128()
    try:
        files = sorted(
            path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")
        )
        for path in files:
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        digest.update((folder / _CONFIG).read_bytes())
    except OSError as error:
        raise UnreadableFileError(folder, error.strerror or str(error)) from error
    return digest.digest()
