"""Typed reading of one JSON object of config.json. Knows JSON and error messages, no model.

Every method raises `ConfigError` naming the file, the field and the rule.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, Self

from worker_svc.models.errors import ConfigError

JsonObject = Mapping[str, object]


class ConfigReader:
    """Reads fields of one JSON object; null counts as absent."""

    def __init__(self, path: Path, values: JsonObject, *, prefix: str = "") -> None:
        self._path = path
        self._values = values
        self._prefix = prefix

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read the file's top-level object."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(path, "file", f"cannot be read: {reason}") from error
        except ValueError as error:
            raise ConfigError(path, "file", f"is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(path, "file", "must be a JSON object")
        return cls(path, values)

    def refuse(self, field: str, rule: str) -> NoReturn:
        """Raise the error of a field that breaks a rule."""
        raise ConfigError(self._path, self._prefix + field, rule)

    def has(self, field: str) -> bool:
        """Whether the field is there and not null."""
        return self._values.get(field) is not None

    def fields(self) -> frozenset[str]:
        """Names of the fields that are there and not null."""
        return frozenset(name for name in self._values if self.has(name))

    def section(self, field: str) -> "ConfigReader":
        """The reader of a nested object; an absent one reads as empty."""
        value = self._values.get(field)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            self.refuse(field, f"must be an object, not {value!r}")
        return ConfigReader(self._path, value, prefix=f"{self._prefix}{field}.")

    def with_default(self, field: str, value: object) -> "ConfigReader":
        """The same object, with a value for a field that is absent."""
        if self.has(field):
            return self
        return ConfigReader(self._path, {**self._values, field: value}, prefix=self._prefix)

    def count(self, field: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self._get(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.refuse(field, f"must be a whole number of at least 1, not {value!r}")
        return value

    def number(self, field: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._get(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(field, f"must be a number, not {value!r}")
        if not math.isfinite(value) or value <= 0:
            self.refuse(field, f"must be a finite number above 0, not {value!r}")
        return float(value)

    def flag(self, field: str, *, default: bool) -> bool:
        """True or false."""
        value = self._get(field, default)
        if not isinstance(value, bool):
            self.refuse(field, f"must be true or false, not {value!r}")
        return value

    def text(self, field: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(field, default)
        if not isinstance(value, str):
            self.refuse(field, f"must be a string, not {value!r}")
        return value

    def texts(self, field: str) -> tuple[str, ...]:
        """A list of strings; absent reads as empty."""
        value = self._values.get(field)
        items = value if isinstance(value, list) else [] if value is None else [None]
        found = tuple(item for item in items if isinstance(item, str))
        if len(found) != len(items):
            self.refuse(field, f"must be a list of strings, not {value!r}")
        return found

    def ids(self, field: str) -> tuple[int, ...]:
        """One token id or a list of them; absent reads as empty."""
        value = self._values.get(field)
        items = value if isinstance(value, list) else [] if value is None else [value]
        found = tuple(i for i in items if isinstance(i, int) and not isinstance(i, bool) and i >= 0)
        if len(found) != len(items):
            self.refuse(field, f"must be a token id or a list of them, not {value!r}")
        return found

    def _get(self, field: str, default: object) -> object:
        value = self._values.get(field)
        if value is None:
            value = default
        if value is None:
            self.refuse(field, "is required")
        return value
