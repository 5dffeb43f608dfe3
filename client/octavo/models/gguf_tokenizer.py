"""Turns the tokenizer inside a GGUF file into tokenizer.json and tokenizer_config.json.

Knows byte-level BPE with the `smollm` pre-tokenizer only; others are refused.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from octavo.models.errors import ModelFileCorrupt
from octavo.models.gguf_llama import LlamaGguf

_CONTROL_TOKEN = 3  # GGUF's token_type of special tokens


def write_tokenizer(source: LlamaGguf, folder: Path) -> None:
    """Write the two tokenizer files into `folder`."""
    kinds = (source.text("tokenizer.ggml.model"), source.text("tokenizer.ggml.pre"))
    if kinds != ("gpt2", "smollm"):
        raise ModelFileCorrupt(folder, f"tokenizer kinds must be ('gpt2', 'smollm'), are {kinds}")
    tokens = source.texts("tokenizer.ggml.tokens")
    _byte_level_bpe(source, tokens).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(_tokenizer_config(source, tokens), ensure_ascii=False, indent=2) + "\n",
        encoding="utf-8",
    )


def _byte_level_bpe(source: LlamaGguf, tokens: list[str]) -> Tokenizer:
    merges: list[tuple[str, str]] = []
    for merge in source.texts("tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(tokens)}, merges))
    # The name `smollm` means: every digit alone, then the GPT-2 split.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = source.integers("tokenizer.ggml.token_type")
    special = [text for text, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    return tokenizer


def _tokenizer_config(source: LlamaGguf, tokens: list[str]) -> dict[str, object]:
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    special: dict[str, object] = {
        f"{name}_token": tokens[source.integer(f"tokenizer.ggml.{key}_token_id")]
        for name, key in names.items()
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        **special,
        "chat_template": source.text("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": source.integer("llama.context_length"),
        # The class that takes tokenizer.json as it is, digit split included.
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
