"""One checkpoint's tokenizer: text to ids, ids to text, and the ids with a meaning.

Immutable and safe to use from several threads. Knows nothing of chat templates or requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import tokenizers

from scheduler_svc.frontend.text.detokenizer import (
    ByteFallbackDetokenizer,
    ByteLevelDetokenizer,
    Detokenizer,
    prompt_tail,
)
from scheduler_svc.frontend.text.errors import TokenizerFileInvalid
from scheduler_svc.frontend.text.special_tokens import (
    end_token_ids,
    listed_tokens,
    named_tokens,
)
from scheduler_svc.frontend.text.token_table import (
    TextPieces,
    byte_level_pieces,
    is_byte_level,
)

_TOKENIZER_FILE = "tokenizer.json"


class Tokenizer:
    """Made by `Tokenizer.load`."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        path: Path,
        special_tokens: Mapping[str, str],
        eos_token_ids: frozenset[int],
    ) -> None:
        self._backend = backend
        self.num_ids = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        """One more than the largest id, added tokens included; no id beyond has a text."""
        self.special_tokens = special_tokens
        """Texts of the named tokens, by `bos_token`, `eos_token` and so on."""
        self.eos_token_ids = eos_token_ids
        """Ids that end an output: the union of config, generation config and tokenizer."""
        self.special_token_ids = _special_ids(backend, self.num_ids)
        """Ids whose text `skip_special_tokens` leaves out."""
        self._pieces: list[str | bytes] | TextPieces = (
            byte_level_pieces(backend, num_ids=self.num_ids)
            if is_byte_level(backend)
            else TextPieces(backend, path=path, num_ids=self.num_ids)
        )

    @classmethod
    def load(cls, model_dir: Path) -> Tokenizer:
        """Read tokenizer.json and the small files beside it.

        Raises `TokenizerFileInvalid`, naming the file and the rule it breaks.
        """
        path = model_dir / _TOKENIZER_FILE
        backend = _read_backend(path)
        named = named_tokens(model_dir)
        _mark_special(backend, (*named.values(), *listed_tokens(model_dir)))
        eos_token_ids = end_token_ids(
            model_dir, eos_token=named.get("eos_token"), id_of=backend.token_to_id
        )
        return cls(backend, path=path, special_tokens=named, eos_token_ids=eos_token_ids)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the text's ids, by default with the tokens the tokenizer adds of its own.

        A chat template writes its special tokens itself: its text is encoded without more.
        """
        # The batch call, for one text: unlike the plain one it lets other threads run meanwhile.
        batch = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = batch[0].ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of the ids; those without a text are left out."""
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def detokenizer(
        self,
        prompt_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        shown: Sequence[str] = (),
    ) -> Detokenizer:
        """Return an incremental decoder for what is generated behind the prompt.

        The tokens of the texts `shown` are not left out, special or not.
        """
        hidden_ids = self.special_token_ids if skip_special_tokens else frozenset()
        hidden_ids -= {self._backend.token_to_id(text) for text in shown}
        pieces = self._pieces
        if isinstance(pieces, TextPieces):
            tail = prompt_tail(_fallback_pieces_from_end(pieces, prompt_ids))
            return ByteFallbackDetokenizer(pieces, hidden_ids=hidden_ids, prompt_tail=tail)
        from_end = (pieces[i] if i < len(pieces) else "" for i in reversed(prompt_ids))
        return ByteLevelDetokenizer(
            pieces, hidden_ids=hidden_ids, prompt_tail=prompt_tail(from_end)
        )


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise TokenizerFileInvalid(path, "file is missing")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        raise TokenizerFileInvalid(path, f"is not a tokenizer: {error}") from error
    # Limits stored by a training run would cut or pad prompts in silence.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _mark_special(backend: tokenizers.Tokenizer, texts: Sequence[str]) -> None:
    """Make the named tokens special where tokenizer.json does not, as transformers does."""
    known = [text for text in texts if backend.token_to_id(text) is not None]
    marked = {
        token.content for token in backend.get_added_tokens_decoder().values() if token.special
    }
    backend.add_special_tokens(
        [tokenizers.AddedToken(text, special=True) for text in known if text not in marked]
    )


def _special_ids(backend: tokenizers.Tokenizer, num_ids: int) -> frozenset[int]:
    added = backend.get_added_tokens_decoder()
    return frozenset(i for i, token in added.items() if token.special and i < num_ids)


def _fallback_pieces_from_end(
    pieces: TextPieces, prompt_ids: Sequence[int]
) -> Iterator[str | bytes]:
    for token_id in reversed(prompt_ids):
        byte = pieces.byte_of(token_id)
        yield pieces.text_of(token_id) if byte is None else bytes((byte,))
