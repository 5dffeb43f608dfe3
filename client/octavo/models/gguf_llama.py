"""Reads a Llama-shaped GGUF file: its weights under their Hugging Face names, and its config.

Knows nothing of tokenizers or of where files lie. Quantized weights are dequantized to float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf import GGUFReader, ReaderTensor, dequantize
from numpy.typing import NDArray

from octavo.models.errors import ModelFileCorrupt
from octavo.models.safetensors_file import TensorEntry

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class LlamaGguf:
    """One opened file; every field that is asked for and absent is a `ModelFileCorrupt`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = GGUFReader(path)
        if self.text("general.architecture") != "llama":
            raise ModelFileCorrupt(path, "general.architecture must be 'llama'")

    def text(self, key: str) -> str:
        """Return a string field."""
        value = self._contents(key)
        if not isinstance(value, str):
            raise ModelFileCorrupt(self._path, f"field {key} must be a string")
        return value

    def integer(self, key: str) -> int:
        """Return an integer field."""
        value = self._contents(key)
        if not isinstance(value, int):
            raise ModelFileCorrupt(self._path, f"field {key} must be an integer")
        return value

    def real(self, key: str) -> float:
        """Return a float field, as the shortest decimal of its 32 bits (1e-05, not 9.99e-06)."""
        value = self._contents(key)
        if not isinstance(value, float):
            raise ModelFileCorrupt(self._path, f"field {key} must be a float")
        return float(str(np.float32(value)))

    def texts(self, key: str) -> list[str]:
        """Return an array of strings."""
        value = self._contents(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ModelFileCorrupt(self._path, f"field {key} must be an array of strings")
        return value

    def integers(self, key: str) -> list[int]:
        """Return an array of integers."""
        value = self._contents(key)
        if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
            raise ModelFileCorrupt(self._path, f"field {key} must be an array of integers")
        return value

    def _contents(self, key: str) -> object:
        field = self._reader.fields.get(key)
        if field is None:
            raise ModelFileCorrupt(self._path, f"field {key} is missing")
        return field.contents()

    def config(self) -> dict[str, object]:
        """Return the content of config.json in the spelling of transformers 5."""
        num_heads = self.integer("llama.attention.head_count")
        return {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": self.integer("tokenizer.ggml.bos_token_id"),
            "dtype": "bfloat16",
            "eos_token_id": self.integer("tokenizer.ggml.eos_token_id"),
            "head_dim": self.integer("llama.embedding_length") // num_heads,
            "hidden_act": "silu",
            "hidden_size": self.integer("llama.embedding_length"),
            "intermediate_size": self.integer("llama.feed_forward_length"),
            "max_position_embeddings": self.integer("llama.context_length"),
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": num_heads,
            "num_hidden_layers": self.integer("llama.block_count"),
            "num_key_value_heads": self.integer("llama.attention.head_count_kv"),
            "pad_token_id": self.integer("tokenizer.ggml.padding_token_id"),
            "rms_norm_eps": self.real("llama.attention.layer_norm_rms_epsilon"),
            "rope_parameters": {
                "rope_theta": self.real("llama.rope.freq_base"),
                "rope_type": "default",
            },
            "tie_word_embeddings": all(t.name != "output.weight" for t in self._reader.tensors),
            "vocab_size": self.integer("llama.vocab_size"),
        }

    def tensor_entries(self) -> list[TensorEntry]:
        """Return names and shapes of all weights, in the order of `tensors()`."""
        return [
            TensorEntry(name=self._name(tensor), shape=_shape(tensor))
            for tensor in self._reader.tensors
        ]

    def tensors(self) -> Iterator[NDArray[np.float32]]:
        """Yield the weights one by one, as Hugging Face checkpoints hold them."""
        num_heads = {
            "attn_q": self.integer("llama.attention.head_count"),
            "attn_k": self.integer("llama.attention.head_count_kv"),
        }
        for tensor in self._reader.tensors:
            values = dequantize(tensor.data, tensor.tensor_type)
            values = values.astype(np.float32, copy=False).reshape(_shape(tensor))
            heads = num_heads.get(tensor.name.split(".")[-2])
            yield values if heads is None else _split_rotary_halves(values, heads)

    def _name(self, tensor: ReaderTensor) -> str:
        parts = tensor.name.split(".")
        if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_NAMES:
            return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
        if tensor.name in _TOP_NAMES:
            return _TOP_NAMES[tensor.name]
        raise ModelFileCorrupt(self._path, f"tensor {tensor.name} is not known")


def _shape(tensor: ReaderTensor) -> tuple[int, ...]:
    # GGUF lists the fastest dimension first.
    return tuple(int(size) for size in reversed(tensor.shape))


def _split_rotary_halves(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Undo GGUF's interleaving: rows 0,1,2,3.. of a head are its rotary pairs' (a,b),(a,b)..;
    Hugging Face wants all a rows, then all b rows.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)
