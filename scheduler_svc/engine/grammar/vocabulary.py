"""A model's tokens as the grammar library knows them. The only place that reads tokenizer.json for
their text.
"""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from llguidance import LLTokenizer

_FILE = "tokenizer.json"


class UnusableTokenizer(Exception):
    """Grammars cannot be used with the model's tokenizer; the text says why."""


class Vocabulary:
    """The tokens, and the ids that the library itself takes for the end."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self.tokenizer = tokenizer
        self.num_words = -(-tokenizer.vocab_size // 32)
        self._not_ends = ~words_of(tokenizer.eos_tokens, num_words=self.num_words)

    def without_ends(self, words: npt.NDArray[np.int32]) -> None:
        """Takes the library's end ids out of masks [..., num_words]: a request has its own."""
        words &= self._not_ends


def load_vocabulary(model_dir: Path) -> Vocabulary:
    """Reads the model folder; takes up to a second. Raises UnusableTokenizer."""
    path = model_dir / _FILE
    try:
        return Vocabulary(LLTokenizer(path.read_text(encoding="utf-8"), eos_token=_ends(model_dir)))
    except (OSError, ValueError) as error:
        raise UnusableTokenizer(f"{_FILE} cannot be used for structured output: {error}") from error


def words_of(ids: npt.ArrayLike, *, num_words: int) -> npt.NDArray[np.int32]:
    """A mask [num_words] that allows these ids; those beyond it are left out."""
    allowed = np.zeros(32 * num_words, np.uint8)
    chosen = np.asarray(ids, np.int64)
    allowed[chosen[(chosen >= 0) & (chosen < allowed.size)]] = 1
    return np.packbits(allowed, bitorder="little").view("<i4").astype(np.int32)


def _ends(model_dir: Path) -> list[int] | None:
    """The model's own end ids; None lets the library guess from the names of special tokens."""
    for name in ("generation_config.json", "config.json"):
        path = model_dir / name
        if path.is_file():
            value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            ids = value if isinstance(value, list) else [value]
            if ids and all(isinstance(one, int) for one in ids):
                return list(ids)
    return None
