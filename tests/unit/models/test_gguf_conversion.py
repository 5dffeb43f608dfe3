"""A GGUF becomes a Hugging Face folder with the same numbers, checked against the formats' text."""

import json
import struct
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer

from octavo.models.gguf_conversion import convert_gguf
from octavo.models.progress import no_progress
from octavo.models.safetensors_file import to_bfloat16_bits

HEAD_DIM = 32
BLOCK = 32


class Source(Protocol):
    """What the fixture gives."""

    gguf_path: Path
    raw: dict[str, tuple[NDArray[np.uint8], str]]


@pytest.fixture(scope="module")
def folder(tiny_source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("converted")
    convert_gguf(tiny_source.gguf_path, path, progress=no_progress)
    return path


def read_tensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """Read a safetensors file of bfloat16 tensors by the format's own words."""
    content = path.read_bytes()
    (header_bytes,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + header_bytes])
    header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "BF16"
        begin, end = entry["data_offsets"]
        bits = np.frombuffer(content[8 + header_bytes :][begin:end], dtype="<u2")
        values = (bits.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def dequantized(stored: NDArray[np.uint8], kind: str) -> NDArray[np.float32]:
    """Unpack rows block by block: a scale (and a minimum), then 32 numbers."""
    if kind == "F32":
        return stored.view(np.float32)
    size = {"Q8_0": 2 + 32, "Q4_1": 4 + 16}[kind]
    rows = []
    for row in stored:
        values: list[float] = []
        for begin in range(0, len(row), size):
            block = row[begin : begin + size].tobytes()
            if kind == "Q8_0":
                (scale,) = struct.unpack("<e", block[:2])
                values += [scale * q for q in struct.unpack("<32b", block[2:])]
            else:
                scale, minimum = struct.unpack("<ee", block[:4])
                low = [byte & 15 for byte in block[4:]]
                high = [byte >> 4 for byte in block[4:]]
                values += [scale * q + minimum for q in low + high]
        rows.append(values)
    return np.array(rows, dtype=np.float32)


def halves_apart(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Row i of a head's first half is GGUF row 2i, of its second half 2i + 1."""
    half = HEAD_DIM // 2
    order = [
        head + 2 * i + side
        for head in range(0, len(weight), HEAD_DIM)
        for side in (0, 1)
        for i in range(half)
    ]
    return weight[order]


def test_every_tensor_has_the_source_values_rounded_to_bfloat16(
    folder: Path, tiny_source: Source
) -> None:
    expected = {name: dequantized(*raw) for name, raw in tiny_source.raw.items()}
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight",
        "blk.0.attn_q.weight": "model.layers.0.self_attn.q_proj.weight",
        "blk.0.attn_k.weight": "model.layers.0.self_attn.k_proj.weight",
        "blk.0.attn_v.weight": "model.layers.0.self_attn.v_proj.weight",
        "blk.0.attn_output.weight": "model.layers.0.self_attn.o_proj.weight",
        "blk.0.ffn_norm.weight": "model.layers.0.post_attention_layernorm.weight",
        "blk.0.ffn_gate.weight": "model.layers.0.mlp.gate_proj.weight",
        "blk.0.ffn_up.weight": "model.layers.0.mlp.up_proj.weight",
        "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
        "output_norm.weight": "model.norm.weight",
    }
    converted = read_tensors(folder / "model.safetensors")
    assert converted.keys() == set(names.values())
    for source_name, name in names.items():
        values = expected[source_name]
        if "attn_q" in source_name or "attn_k" in source_name:
            values = halves_apart(values)
        np.testing.assert_allclose(converted[name], values, rtol=2**-8, atol=1e-6, err_msg=name)


def test_config_is_that_of_a_tied_llama_in_the_spelling_of_transformers_5(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["model_type"] == "llama"
    assert config["dtype"] == "bfloat16"
    assert config["rope_parameters"] == {"rope_theta": 100000.0, "rope_type": "default"}
    assert config["rms_norm_eps"] == 1e-5
    assert config["tie_word_embeddings"] is True
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (2, 1)
    assert (config["head_dim"], config["hidden_size"], config["vocab_size"]) == (32, 64, 260)
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def test_tokenizer_splits_digits_although_a_merge_would_join_them(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("a20").tokens == ["a", "2", "0"]
    assert tokenizer.token_to_id("20") is not None


def test_special_tokens_are_found_in_text_and_named_in_the_config(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>").ids == [1]
    assert tokenizer.decode([1, 2]) == ""
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert config["chat_template"].startswith("{% for message in messages %}")


def test_progress_reaches_the_total_and_never_goes_back(
    tiny_source: Source, tmp_path: Path
) -> None:
    calls: list[tuple[str, int, int]] = []
    convert_gguf(
        tiny_source.gguf_path,
        tmp_path,
        progress=lambda stage, done_bytes, total_bytes: calls.append(
            (stage, done_bytes, total_bytes)
        ),
    )
    assert {stage for stage, _, _ in calls} == {"convert"}
    done = [done_bytes for _, done_bytes, _ in calls]
    assert done == sorted(done)
    assert (
        calls[-1][1]
        == calls[-1][2]
        == sum(2 * tensor.size for tensor in read_tensors(tmp_path / "model.safetensors").values())
    )


@given(st.lists(st.floats(width=32, min_value=-(2.0**127), max_value=2.0**127), min_size=1))
def test_rounding_to_bfloat16_picks_the_nearest_value(numbers: list[float]) -> None:
    values = np.array(numbers, dtype=np.float32)
    bits = to_bfloat16_bits(values).astype(np.uint32)
    chosen = (bits << 16).view(np.float32).astype(np.float64)
    for offset in (-1, 1):
        neighbour_bits = (bits.astype(np.int64) + offset).astype(np.uint32) & 0xFFFF
        neighbour = (neighbour_bits << 16).astype(np.uint32).view(np.float32).astype(np.float64)
        same_sign = (neighbour_bits ^ bits) & 0x8000 == 0
        comparable = same_sign & np.isfinite(neighbour)
        error = np.abs(chosen - values)
        assert np.all(error[comparable] <= np.abs(neighbour - values)[comparable])
