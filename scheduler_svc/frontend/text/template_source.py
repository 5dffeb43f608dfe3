"""Where a checkpoint keeps its chat template. Knows nothing of what is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scheduler_svc.frontend.text.checkpoint_json import read_object
from scheduler_svc.frontend.text.errors import TokenizerFileInvalid
from scheduler_svc.frontend.text.special_tokens import TOKENIZER_CONFIG

_TEMPLATE_FILE = "chat_template.jinja"
_DEFAULT_NAME = "default"


@dataclass(frozen=True, kw_only=True)
class TemplateSource:
    """A template's text, and the file it was found in."""

    text: str
    path: Path


def find_template(model_dir: Path) -> TemplateSource | None:
    """Return chat_template.jinja, else the template of tokenizer_config.json, else None."""
    path = model_dir / _TEMPLATE_FILE
    if path.is_file():
        try:
            return TemplateSource(text=path.read_text(encoding="utf-8"), path=path)
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerFileInvalid(path, f"cannot be read as UTF-8: {error}") from error
    path = model_dir / TOKENIZER_CONFIG
    value = read_object(path).get("chat_template")
    if value is None:
        return None
    if isinstance(value, list):
        value = _default_of(value, path)
    if not isinstance(value, str):
        raise TokenizerFileInvalid(path, "chat_template must be a string or a list of named ones")
    return TemplateSource(text=value, path=path)


def _default_of(entries: Sequence[object], path: Path) -> object:
    for entry in entries:
        if isinstance(entry, dict) and entry.get("name") == _DEFAULT_NAME:
            return entry.get("template")
    raise TokenizerFileInvalid(path, f"chat_template must have an entry named {_DEFAULT_NAME!r}")
