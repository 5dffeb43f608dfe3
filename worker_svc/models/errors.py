"""Why a model cannot be served. Each error carries its facts and names the file or flag to look at.

ModelError
├── ConfigError              config.json: missing, unreadable, or a field breaks a rule
├── ParallelSizeError        the number of ranks does not divide the model
└── CheckpointError          the safetensors files
    ├── UnreadableFileError  absent, truncated or corrupt
    ├── MissingTensorsError  the model needs tensors that no file has
    ├── UnusedTensorsError   files have tensors that the model does not know
    └── TensorShapeError     a tensor has another shape or kind than the model says
"""

from collections.abc import Sequence
from pathlib import Path

_NAMES_SHOWN = 8


class ModelError(Exception):
    """A model that cannot be served as given."""


class ConfigError(ModelError):
    """A field of config.json breaks a rule, or the file cannot be read."""

    def __init__(self, path: Path, field: str, rule: str) -> None:
        super().__init__(f"{path}: {field}: {rule}")
        self.path = path
        self.field = field
        self.rule = rule


class ParallelSizeError(ModelError):
    """The model cannot be split over this number of ranks."""

    def __init__(self, *, size: int, field: str, value: int) -> None:
        super().__init__(
            f"--tensor-parallel-size {size} does not fit the model: {field} is {value}, "
            "which the number of ranks must divide"
        )
        self.size = size
        self.field = field
        self.value = value


class CheckpointError(ModelError):
    """The safetensors files do not hold this model."""


class UnreadableFileError(CheckpointError):
    """A weight file is absent, truncated or corrupt."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class MissingTensorsError(CheckpointError):
    """The model needs tensors that no file has."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__(f"{folder}: missing {_listed(names)}")
        self.folder = folder
        self.names = tuple(names)


class UnusedTensorsError(CheckpointError):
    """Files have tensors that the model does not know: it would not compute what was trained."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__(f"{folder}: the model has no use for {_listed(names)}")
        self.folder = folder
        self.names = tuple(names)


class TensorShapeError(CheckpointError):
    """A tensor has another shape or kind than the model says."""

    def __init__(self, path: Path, name: str, *, expected: str, found: str) -> None:
        super().__init__(f"{path}: tensor {name} is {found}, the model needs {expected}")
        self.path = path
        self.name = name


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    more = len(names) - _NAMES_SHOWN
    noun = "tensor" if len(names) == 1 else f"{len(names)} tensors:"
    return f"{noun} {shown}" + (f" and {more} more" if more > 0 else "")
