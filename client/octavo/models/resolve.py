"""Turns what a user calls a model into the folder that holds it.

A name is, in this order: a folder; an embedded model; a repository in the Hugging Face cache.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from octavo.models.embedded import obtain_embedded
from octavo.models.errors import MissingPackage, ModelFileCorrupt, ModelFolderInvalid, ModelNotFound
from octavo.models.packages import require_packages
from octavo.models.progress import Progress, no_progress
from octavo.models.pull import ALLOW_PATTERNS, IGNORE_PATTERNS
from octavo.models.smollm2 import SMOLLM2

DEFAULT_MODEL = SMOLLM2.name
_SHARD_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, kw_only=True)
class ModelFolder:
    """A folder that holds at least config.json, and the name clients know the model by."""

    path: Path
    name: str


def resolve_model(
    name_or_dir: str | os.PathLike[str],
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> ModelFolder:
    """Return the folder of a model; an embedded one is made first when it is not in `cache_dir`.

    Raises `ModelNotFound`, `ModelFolderInvalid`, and what `obtain_embedded` raises. Never asks the
    network about a name: `pull_model` does.
    """
    text = os.fspath(name_or_dir)
    path = Path(text).expanduser()
    if text and path.is_dir():
        return _checked(path.absolute(), name=path.resolve().name)
    if text == SMOLLM2.name:
        folder = obtain_embedded(SMOLLM2, cache_dir=cache_dir, progress=progress or no_progress)
        return _checked(folder, name=SMOLLM2.name)
    if not text or path.exists() or text.startswith(("/", ".", "~")) or text.count("/") > 1:
        raise ModelNotFound(text, "no such folder")
    return _checked(_cached_repository(text), name=text)


def _checked(path: Path, *, name: str) -> ModelFolder:
    missing = [] if (path / "config.json").is_file() else ["config.json"]
    missing += [shard for shard in _listed_shards(path) if not (path / shard).is_file()]
    if missing:
        raise ModelFolderInvalid(path, tuple(missing))
    return ModelFolder(path=path, name=name)


def _listed_shards(path: Path) -> list[str]:
    index = path / _SHARD_INDEX
    if not index.is_file():
        return []
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileCorrupt(index, "must be JSON with a `weight_map` object") from error


def _cached_repository(name: str) -> Path:
    advice = (
        f"no folder and no embedded model ({SMOLLM2.name}) has this name, and it is not complete in"
        f" the Hugging Face cache. To download it: `octavo models pull {name}`"
    )
    try:
        require_packages(("huggingface_hub",), purpose="looking into the Hugging Face cache")
    except MissingPackage as error:
        raise ModelNotFound(name, f"no such folder or embedded model; {error}") from error
    # An optional extra of the SDK.
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    try:
        folder = snapshot_download(
            name,
            local_files_only=True,
            allow_patterns=list(ALLOW_PATTERNS),
            ignore_patterns=list(IGNORE_PATTERNS),
        )
    except (OSError, ValueError) as error:  # not in the cache, or not a repository id
        raise ModelNotFound(name, advice) from error
    return Path(folder)
