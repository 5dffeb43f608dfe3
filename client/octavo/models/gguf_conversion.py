"""Converts a Llama-shaped GGUF file into a Hugging Face model folder.

Knows nothing of downloads or caches. Weights are stored as bfloat16: half the size of float32, and
its rounding is far below that of the 4-bit weights they come from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from octavo.models.gguf_llama import LlamaGguf
from octavo.models.gguf_tokenizer import write_tokenizer
from octavo.models.progress import Progress
from octavo.models.safetensors_file import TensorEntry, write_bfloat16_file


def convert_gguf(gguf_path: Path, folder: Path, *, progress: Progress) -> None:
    """Write config.json, generation_config.json, tokenizer files and model.safetensors."""
    source = LlamaGguf(gguf_path)
    config = source.config()
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    write_tokenizer(source, folder)
    entries = source.tensor_entries()
    tensors = _reported(source.tensors(), entries, progress)
    write_bfloat16_file(folder / "model.safetensors", entries, tensors)


def _reported(
    tensors: Iterator[NDArray[np.float32]], entries: list[TensorEntry], progress: Progress
) -> Iterator[NDArray[np.float32]]:
    total_bytes = sum(entry.num_bytes for entry in entries)
    done_bytes = 0
    for entry, tensor in zip(entries, tensors, strict=True):
        yield tensor
        done_bytes += entry.num_bytes
        progress("convert", done_bytes, total_bytes)


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
