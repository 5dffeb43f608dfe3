"""What each token id adds to the text, looked up instead of decoded. Knows nothing of streams.

Built once per checkpoint. Two kinds of decoder are known: byte-level ones, where every token is
bytes, and those where a token is text of its own and single bytes are tokens such as <0xF0>.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from scheduler_svc.frontend.text.errors import TokenizerFileInvalid

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ANCHOR_TEXT = re.compile(r"[A-Za-z]+")
_ASCII_PRINTABLE = range(0x21, 0x7F)
_LATIN_PRINTABLE = (*range(0xA1, 0xAD), *range(0xAE, 0x100))
_LONE_STEPS = (["Metaspace"], ["WordPiece"])
_STEPS_IN_ORDER = ("Replace", "ByteFallback", "Fuse", "Strip")


def decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, object]]:
    """Return the settings of the decoder's steps in their order; empty when it has none."""
    if backend.decoder is None:
        return []
    state = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, object]] = state["decoders"] if state["type"] == "Sequence" else [state]
    return steps


def is_byte_level(backend: tokenizers.Tokenizer) -> bool:
    """Whether the tokens are bytes, so that `byte_level_pieces` applies."""
    return [step["type"] for step in decoder_steps(backend)] == ["ByteLevel"]


def byte_level_pieces(backend: tokenizers.Tokenizer, *, num_ids: int) -> list[str | bytes]:
    """Return, by id, the token's text where its bytes are whole characters, else its bytes."""
    byte_of = _bytes_by_character()
    return [_byte_level_piece(backend.id_to_token(i), byte_of) for i in range(num_ids)]


def _byte_level_piece(token: str | None, byte_of: Mapping[str, int]) -> str | bytes:
    if token is None:
        return ""  # a gap in the vocabulary
    try:
        data = bytes([byte_of[character] for character in token])
    except KeyError:
        return token  # an added token with characters that stand for no byte is itself
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _bytes_by_character() -> dict[str, int]:
    """Return the byte for each of the 256 characters that byte-level vocabularies are written in.

    Printable bytes stand for themselves; the others, in order, are the characters from U+0100 on.
    """
    printable = {*_ASCII_PRINTABLE, *_LATIN_PRINTABLE}
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    assert table.keys() == set(ByteLevel.alphabet())
    return table


def _treats_tokens_alone(steps: list[dict[str, object]]) -> bool:
    kinds = [step["type"] for step in steps]
    if any(step.get("stop", 0) != 0 for step in steps):
        return False  # strips the end of the text, which nobody knows while it grows
    return kinds in _LONE_STEPS or kinds == [kind for kind in _STEPS_IN_ORDER if kind in kinds]


class TextPieces:
    """The text of tokens whose decoder treats each token alone, beyond the very first one."""

    def __init__(self, backend: tokenizers.Tokenizer, *, path: Path, num_ids: int) -> None:
        kinds = [step["type"] for step in decoder_steps(backend)]
        if not _treats_tokens_alone(decoder_steps(backend)):
            raise TokenizerFileInvalid(path, f"a decoder of the kind {kinds} is not supported")
        self._backend = backend
        self._num_ids = num_ids
        self._has_byte_tokens = "ByteFallback" in kinds
        self._anchor_id = self._find_anchor(path)
        self._anchor_text = backend.decode([self._anchor_id], skip_special_tokens=False)
        self._known: dict[int, str] = {}

    def _find_anchor(self, path: Path) -> int:
        special = self._backend.get_added_tokens_decoder()
        for token_id in range(self._num_ids):
            token = self._backend.id_to_token(token_id)
            if token and token_id not in special and _ANCHOR_TEXT.fullmatch(token):
                return token_id
        raise TokenizerFileInvalid(path, "the vocabulary must hold a token of plain letters")

    def knows(self, token_id: int) -> bool:
        """Whether the vocabulary has a token of this id."""
        return token_id < self._num_ids and self._backend.id_to_token(token_id) is not None

    def byte_of(self, token_id: int) -> int | None:
        """Return the byte that the token stands for, None for a token of text."""
        token = self._backend.id_to_token(token_id) if self._has_byte_tokens else None
        match = _BYTE_TOKEN.fullmatch(token) if token else None
        return int(match[1], 16) if match else None

    def text_of(self, token_id: int) -> str:
        """Return what the token adds to text that is not empty."""
        if token_id not in self._known:
            # Behind an anchor, so that rules for the beginning of a text do not apply.
            ids = [self._anchor_id, token_id]
            text = self._backend.decode(ids, skip_special_tokens=False)
            self._known[token_id] = text.removeprefix(self._anchor_text)
        return self._known[token_id]
