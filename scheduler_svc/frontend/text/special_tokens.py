"""Which tokens a checkpoint names (bos, eos, ...) and which ids end an output.

Knows nothing of encoding. Later files win: special_tokens_map.json, then tokenizer_config.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from scheduler_svc.frontend.text.checkpoint_json import read_object, token_ids, token_text
from scheduler_svc.frontend.text.errors import TokenizerFileInvalid

TOKENIZER_CONFIG = "tokenizer_config.json"
_MAP_FILE = "special_tokens_map.json"
_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_LIST_KEYS = ("additional_special_tokens", "extra_special_tokens")
_EOS_KEY = "eos_token_id"


def named_tokens(model_dir: Path) -> Mapping[str, str]:
    """Return the texts of the tokens that have a name, by `bos_token` and so on."""
    files = [read_object(model_dir / file) for file in (_MAP_FILE, TOKENIZER_CONFIG)]
    found: dict[str, str] = {}
    for key in (f"{name}_token" for name in _NAMES):
        for content in files:
            text = token_text(content.get(key))
            if text:
                found[key] = text
    return found


def listed_tokens(model_dir: Path) -> tuple[str, ...]:
    """Return the texts of the special tokens that are only listed, without a name of their own."""
    texts: list[str] = []
    for file in (_MAP_FILE, TOKENIZER_CONFIG):
        content = read_object(model_dir / file)
        for key in _LIST_KEYS:
            value = content.get(key)
            entries = list(value.values()) if isinstance(value, dict) else value
            if isinstance(entries, list):
                texts += [text for text in map(token_text, entries) if text]
    return tuple(dict.fromkeys(texts))


def end_token_ids(
    model_dir: Path, *, eos_token: str | None, id_of: Callable[[str], int | None]
) -> frozenset[int]:
    """Return the union of what config, generation config and tokenizer call the end of a text."""
    ids: frozenset[int] = frozenset()
    for file in ("config.json", "generation_config.json"):
        path = model_dir / file
        ids |= token_ids(path, key=_EOS_KEY, value=read_object(path).get(_EOS_KEY))
    if eos_token is None:
        return ids
    eos_id = id_of(eos_token)
    if eos_id is None:
        rule = f"eos_token {eos_token!r} must be in the vocabulary of tokenizer.json"
        raise TokenizerFileInvalid(model_dir / TOKENIZER_CONFIG, rule)
    return ids | {eos_id}
