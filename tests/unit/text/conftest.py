"""The tokenizers of these tests: two real ones of bytes, a small one of text and byte tokens."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from scheduler_svc.frontend.text import tokenizer as octavo_tokenizer
from tests.checkpoints import qwen3_folder, smollm2_folder

WORDS = ["▁", "a", "b", "▁hello", "▁world", "hello", "é", "日", "!"]


@pytest.fixture(scope="session")
def qwen3_dir() -> Path:
    return qwen3_folder()


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    return smollm2_folder()


@pytest.fixture(scope="session")
def smollm2(smollm2_dir: Path) -> octavo_tokenizer.Tokenizer:
    return octavo_tokenizer.Tokenizer.load(smollm2_dir)


@pytest.fixture(scope="session")
def qwen3(qwen3_dir: Path) -> octavo_tokenizer.Tokenizer:
    return octavo_tokenizer.Tokenizer.load(qwen3_dir)


@pytest.fixture(scope="session")
def byte_fallback_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer laid out as Llama 2's: text tokens, 256 byte tokens, a leading space stripped."""
    folder = tmp_path_factory.mktemp("byte-fallback")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens([AddedToken(text, special=True) for text in tokens[:3]])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return folder


@pytest.fixture(scope="session")
def byte_fallback(byte_fallback_dir: Path) -> octavo_tokenizer.Tokenizer:
    return octavo_tokenizer.Tokenizer.load(byte_fallback_dir)
