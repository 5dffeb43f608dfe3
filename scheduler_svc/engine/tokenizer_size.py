"""How many ids a model's tokenizer knows. Reads the tokenizer's file and nothing else of it."""

import json
from pathlib import Path


class UnreadableTokenizer(Exception):
    """A tokenizer file is none; the text names it."""


def count_tokenizer_ids(model_dir: Path) -> int | None:
    """One more than the highest id in tokenizer.json; None without such a file.

    Embeddings may have more rows than that: padding, which must never be chosen.
    Raises UnreadableTokenizer.
    """
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        tokenizer = json.loads(path.read_text(encoding="utf-8"))
        vocabulary: dict[str, int] | list[object] = tokenizer["model"]["vocab"]
        # a table by token, or a list of [token, score] by id
        ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        added: list[int] = [token["id"] for token in tokenizer.get("added_tokens") or ()]
        return int(1 + max((*ids, *added)))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UnreadableTokenizer(f"{path} is no tokenizer file: {error!r}") from error
