"""Tiny random checkpoints in the format of Hugging Face, made with numpy alone (no torch needed).

Weights are drawn so that greedy decoding wanders: with the usual small initial values and a tied
head a model repeats one token, which tests nothing.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from tests.fakes.byte_tokenizer import END_ID, NUM_IDS, write_byte_tokenizer

Floats = npt.NDArray[np.float32]
Family = Literal["qwen3", "qwen2", "llama"]

_ARCHITECTURES = {
    "qwen3": "Qwen3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "llama": "LlamaForCausalLM",
}
_LINEAR_SCALE = 1.6
_EMBEDDING_SCALE = 0.4


@dataclass(frozen=True, slots=True)
class TinyModel:
    """The facts of a tiny model; every default can be replaced."""

    family: Family = "llama"
    hidden_size: int = 48
    intermediate_size: int = 80
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    vocab_size: int = NUM_IDS + 29
    """More rows than the tokenizer has ids, as in real checkpoints."""
    max_position_embeddings: int = 512
    tied: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_theta: float = 10_000.0
    rope: Mapping[str, object] = field(default_factory=dict)
    """Rope scaling as config.json has it, such as {"rope_type": "linear", "factor": 2.0}."""
    spelling: Literal[4, 5] = 5
    """Whose config.json: that of transformers 4 or 5."""
    stored_dtype: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0


def make_tiny_checkpoint(
    folder: Path,
    *,
    family: Family = "llama",
    model: TinyModel | None = None,
    num_files: int = 1,
    with_tokenizer: bool = True,
) -> Path:
    """Write config.json, weights, generation_config.json and a tokenizer; return the folder.

    `model` wins over `family`.
    """
    facts = TinyModel(family=family) if model is None else model
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config_of(facts))
    _write_json(folder / "generation_config.json", {"eos_token_id": [END_ID]})
    write_tensors(folder, dict(tensors_of(facts)), num_files=num_files, dtype=facts.stored_dtype)
    if with_tokenizer:
        write_byte_tokenizer(folder)
    return folder


def config_of(model: TinyModel) -> dict[str, object]:
    """The content of config.json."""
    config: dict[str, object] = {
        "architectures": [_ARCHITECTURES[model.family]],
        "model_type": model.family,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_position_embeddings,
        "tie_word_embeddings": model.tied,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "bos_token_id": None,
        "eos_token_id": END_ID,
    }
    if model.family != "qwen2":
        config["attention_bias"] = model.attention_bias
    if model.family == "llama":
        config["mlp_bias"] = model.mlp_bias
    return {**config, **_spelled(model)}


def _spelled(model: TinyModel) -> dict[str, object]:
    if model.spelling == 5:
        rope = {"rope_type": "default", "rope_theta": model.rope_theta, **model.rope}
        return {"dtype": model.stored_dtype, "rope_parameters": rope}
    return {
        "torch_dtype": model.stored_dtype,
        "rope_theta": model.rope_theta,
        "rope_scaling": dict(model.rope) or None,
    }


def tensors_of(model: TinyModel) -> Iterator[tuple[str, Floats]]:
    """The checkpoint's tensors by name."""
    random = np.random.default_rng(model.seed)

    def linear(name: str, outputs: int, inputs: int, *, bias: bool) -> Iterator[tuple[str, Floats]]:
        scale = _LINEAR_SCALE / np.sqrt(inputs)
        yield f"{name}.weight", random.normal(0, scale, (outputs, inputs)).astype(np.float32)
        if bias:
            yield f"{name}.bias", random.normal(0, 0.2, outputs).astype(np.float32)

    def norm(name: str, size: int) -> tuple[str, Floats]:
        return f"{name}.weight", random.normal(1, 0.1, size).astype(np.float32)

    def embedding(name: str) -> tuple[str, Floats]:
        shape = (model.vocab_size, model.hidden_size)
        return f"{name}.weight", random.normal(0, _EMBEDDING_SCALE, shape).astype(np.float32)

    hidden, inner = model.hidden_size, model.intermediate_size
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    has_qkv_bias = model.family == "qwen2" or model.attention_bias
    yield embedding("model.embed_tokens")
    for index in range(model.num_layers):
        layer = f"model.layers.{index}"
        yield norm(f"{layer}.input_layernorm", hidden)
        yield from linear(f"{layer}.self_attn.q_proj", queries, hidden, bias=has_qkv_bias)
        yield from linear(f"{layer}.self_attn.k_proj", keys, hidden, bias=has_qkv_bias)
        yield from linear(f"{layer}.self_attn.v_proj", keys, hidden, bias=has_qkv_bias)
        yield from linear(f"{layer}.self_attn.o_proj", hidden, queries, bias=model.attention_bias)
        if model.family == "qwen3":
            yield norm(f"{layer}.self_attn.q_norm", model.head_dim)
            yield norm(f"{layer}.self_attn.k_norm", model.head_dim)
        yield norm(f"{layer}.post_attention_layernorm", hidden)
        yield from linear(f"{layer}.mlp.gate_proj", inner, hidden, bias=model.mlp_bias)
        yield from linear(f"{layer}.mlp.up_proj", inner, hidden, bias=model.mlp_bias)
        yield from linear(f"{layer}.mlp.down_proj", hidden, inner, bias=model.mlp_bias)
    yield norm("model.norm", hidden)
    if not model.tied:
        yield embedding("lm_head")


def write_tensors(
    folder: Path,
    tensors: Mapping[str, Floats],
    *,
    num_files: int = 1,
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> None:
    """Write `model.safetensors`, or several files and their index."""
    if num_files == 1:
        _write_file(folder / "model.safetensors", tensors, dtype)
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for index in range(num_files):
        file = f"model-{index + 1:05}-of-{num_files:05}.safetensors"
        part = {name: tensors[name] for name in names[index::num_files]}
        _write_file(folder / file, part, dtype)
        weight_map.update(dict.fromkeys(part, file))
    index_file = folder / "model.safetensors.index.json"
    _write_json(index_file, {"metadata": {}, "weight_map": weight_map})


def _write_file(path: Path, tensors: Mapping[str, Floats], dtype: str) -> None:
    """The safetensors format: length of the header (8 bytes), header in JSON, the tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    contents: list[bytes] = []
    first = 0
    for name, values in tensors.items():
        content = (_as_bfloat16(values) if dtype == "bfloat16" else values).tobytes()
        header[name] = {
            "dtype": "BF16" if dtype == "bfloat16" else "F32",
            "shape": list(values.shape),
            "data_offsets": [first, first + len(content)],
        }
        contents.append(content)
        first += len(content)
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + b"".join(contents))


def _as_bfloat16(values: Floats) -> npt.NDArray[np.uint16]:
    """The upper half of each number, rounded to the nearest, ties to even."""
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
