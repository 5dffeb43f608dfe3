"""What can go wrong between a model's name and its folder.

ModelError
 +-- ModelNotFound        no folder, embedded model or cached repository has this name
 +-- ModelFolderInvalid   the folder is there but lacks a file that a model needs
 +-- ModelFileCorrupt     a file is there but its content is not what it must be
 +-- DownloadFailed       a file could not be fetched
 +-- MissingPackage       an optional Python package is not installed
 +-- ModelBusy            another process prepares the same model and does not end
"""

from __future__ import annotations

from pathlib import Path

from octavo.errors import OctavoError


class ModelError(OctavoError):
    """A model could not be found, fetched or prepared; the text says what to do."""


class ModelNotFound(ModelError):
    """No folder, embedded model or cached repository has this name."""

    def __init__(self, name: str, advice: str) -> None:
        super().__init__(f"model {name!r} not found: {advice}")
        self.name = name


class ModelFolderInvalid(ModelError):
    """The folder exists but is not a model folder."""

    def __init__(self, path: Path, missing: tuple[str, ...]) -> None:
        super().__init__(f"{path} is not a model folder: missing {', '.join(missing)}")
        self.path = path
        self.missing = missing


class ModelFileCorrupt(ModelError):
    """A file's content is not what it must be."""

    def __init__(self, path: Path, rule: str) -> None:
        super().__init__(f"{path}: {rule}")
        self.path = path


class DownloadFailed(ModelError):
    """A file could not be fetched; the text ends with the reason the tool gave."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"cannot download {what}: {reason}")
        self.what = what


class MissingPackage(ModelError):
    """An optional Python package is not installed."""

    def __init__(self, packages: tuple[str, ...], purpose: str) -> None:
        names = " ".join(packages)
        super().__init__(
            f"{purpose} needs the Python package(s) {names}: run `pip install 'octavo[scheduler]'`"
            f" or `pip install {names}`"
        )
        self.packages = packages


class ModelBusy(ModelError):
    """Another process holds the model's lock for longer than the wait limit."""

    def __init__(self, lock: Path, waited_s: float) -> None:
        super().__init__(f"another process has prepared this model for {waited_s:.0f} s ({lock})")
        self.lock = lock
