"""What a JSON schema allows after each token of an output, asked of the grammar library anew."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLTokenizer


class Forms:
    """The schemas of one model's outputs."""

    def __init__(self, model: Path, *, end_id: int) -> None:
        text = (model / "tokenizer.json").read_text(encoding="utf-8")
        self._tokenizer = LLTokenizer(text, eos_token=end_id)

    def allowed(self, schema: str, tokens: Sequence[int]) -> list[frozenset[int]]:
        """For each token of a whole or cut output, the ids that could have come in its place.

        The end is among them where the form may stop. Raises AssertionError for a token that is
        not.
        """
        form = LLMatcher.grammar_from_json_schema(schema)
        matcher = LLMatcher(self._tokenizer, form, log_level=0)
        allowed = []
        for index, token in enumerate(tokens):
            allowed.append(frozenset(_ids(matcher.compute_bitmask())))
            assert token in allowed[-1], (schema, index, tokens)
            assert matcher.consume_token(token)
        return allowed


def _ids(mask: bytes) -> Iterable[int]:
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()
