"""A folder of safetensors files: which tensors it has, and parts of them. Knows no model.

Reads `model.safetensors`, or the files that `model.safetensors.index.json` lists. Files are
mapped, not read: a rank touches the bytes of its own parts only.
"""

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, cast

import torch
from safetensors import SafetensorError, safe_open

from worker_svc.models.errors import MissingTensorsError, TensorShapeError, UnreadableFileError

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_BYTES_OF_FLOAT = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


class _Slices(Protocol):
    def get_shape(self) -> list[int]: ...
    def get_dtype(self) -> str: ...
    def __getitem__(self, index: tuple[slice, ...]) -> torch.Tensor: ...


class _OpenFile(Protocol):
    def keys(self) -> list[str]: ...
    def get_slice(self, name: str) -> _Slices: ...


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """One tensor of a file."""

    name: str
    path: Path
    shape: tuple[int, ...]
    bytes_per_value: int
    slices: _Slices

    def read(self, part: tuple[slice, ...]) -> torch.Tensor:
        """The part, one slice a dimension, as stored. Raises `UnreadableFileError`."""
        try:
            return self.slices[part]
        except (SafetensorError, OSError) as error:
            raise UnreadableFileError(self.path, f"tensor {self.name}: {error}") from error


class Checkpoint:
    """The tensors of a folder, by name. Use as a context manager: it holds files open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = ExitStack()
        self._open_files: dict[str, tuple[Path, _OpenFile]] = {}

    def __enter__(self) -> Self:
        """Open all files and read their headers. Raises a `CheckpointError`."""
        with ExitStack() as files:
            for path in self._listed_files():
                self._open(path, files)
            self._check_index()
            self._files = files.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        self._files.close()

    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(self._open_files)

    def tensor(self, name: str) -> StoredTensor:
        """A tensor that `names` has. Raises `TensorShapeError` when it is not of floating point."""
        path, file = self._open_files[name]
        slices = file.get_slice(name)
        kind = slices.get_dtype()
        if kind not in _BYTES_OF_FLOAT:
            expected = f"one of {', '.join(_BYTES_OF_FLOAT)}"
            raise TensorShapeError(path, name, expected=expected, found=f"stored as {kind}")
        return StoredTensor(name, path, tuple(slices.get_shape()), _BYTES_OF_FLOAT[kind], slices)

    def _listed_files(self) -> list[Path]:
        if (self.folder / _INDEX_FILE).exists():
            return sorted({self.folder / file for file in self._index().values()})
        single = self.folder / _SINGLE_FILE
        if not single.exists():
            raise UnreadableFileError(single, f"not found, and no {_INDEX_FILE} beside it")
        return [single]

    def _index(self) -> dict[str, str]:
        """Tensor name to file name."""
        path = self.folder / _INDEX_FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            files = {str(name): str(file) for name, file in content["weight_map"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnreadableFileError(path, f"has no readable weight_map: {error!r}") from error
        for file in files.values():
            if Path(file).name != file:
                raise UnreadableFileError(path, f"weight_map names a file elsewhere: {file!r}")
        return files

    def _open(self, path: Path, files: ExitStack) -> None:
        if not path.exists():
            raise UnreadableFileError(path, f"listed in {_INDEX_FILE}, but not found")
        try:
            opened = files.enter_context(safe_open(path, framework="pt", device="cpu"))
        except (SafetensorError, OSError) as error:
            raise UnreadableFileError(path, f"truncated or corrupt: {error}") from error
        file = cast("_OpenFile", opened)  # the library types its handle in parts only
        for name in file.keys():  # noqa: SIM118 not a mapping
            if name in self._open_files:
                raise UnreadableFileError(path, f"has tensor {name}, which another file has too")
            self._open_files[name] = (path, file)

    def _check_index(self) -> None:
        if (self.folder / _INDEX_FILE).exists():
            missing = sorted(self._index().keys() - self.names())
            if missing:
                raise MissingTensorsError(self.folder, missing)
