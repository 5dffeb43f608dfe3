"""Reads the small JSON files of a model folder, with errors that name the file, key and rule.

Knows nothing of what the values are for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from scheduler_svc.frontend.text.errors import TokenizerFileInvalid


def read_object(path: Path) -> Mapping[str, object]:
    """Return the JSON object in the file; empty when there is no such file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TokenizerFileInvalid(path, f"cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerFileInvalid(path, "must hold a JSON object")
    return content


def token_text(value: object) -> str | None:
    """Return a token's text from either spelling: a string, or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def token_ids(path: Path, *, key: str, value: object) -> frozenset[int]:
    """Return the ids of an id field: nothing, one integer, or a list of integers."""
    if value is None:
        return frozenset()
    ids = value if isinstance(value, list) else [value]
    for token_id in ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool) or token_id < 0:
            rule = f"{key} must be a token id (0 or more) or a list of them, is {value!r}"
            raise TokenizerFileInvalid(path, rule)
    return frozenset(ids)
