"""Loading a checkpoint's tokenizer: what is read, what is refused, which ids end a text."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import tokenizers

from scheduler_svc.frontend.text.errors import TokenizerFileInvalid
from scheduler_svc.frontend.text.tokenizer import Tokenizer


@pytest.fixture
def folder(smollm2_dir: Path, tmp_path: Path) -> Path:
    """A copy of the SmolLM2 tokenizer alone, to be changed."""
    shutil.copy(smollm2_dir / "tokenizer.json", tmp_path)
    return tmp_path


def write(folder: Path, file: str, content: Mapping[str, object]) -> None:
    (folder / file).write_text(json.dumps(content))


def test_encoding_and_decoding_are_the_tokenizers_own(
    smollm2: Tokenizer, smollm2_dir: Path
) -> None:
    backend = tokenizers.Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))
    text = "In 2024, žluťoučký kůň 日本 🎉<|im_end|>"
    ids = smollm2.encode(text)
    assert ids == backend.encode(text).ids
    assert smollm2.decode(ids, skip_special_tokens=False) == text
    assert smollm2.decode(ids) == text.removesuffix("<|im_end|>")


def test_special_tokens_are_added_by_default_and_not_for_a_chat(
    byte_fallback_dir: Path, tmp_path: Path
) -> None:
    backend = tokenizers.Tokenizer.from_file(str(byte_fallback_dir / "tokenizer.json"))
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", pair=None, special_tokens=[("<s>", 1)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    without = tokenizer.encode("ab", add_special_tokens=False)
    assert tokenizer.encode("ab") == [1, *without]


def test_limits_left_in_the_file_do_not_cut_or_pad_prompts(folder: Path) -> None:
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(max_length=4)
    backend.enable_padding(length=16)
    backend.save(str(folder / "tokenizer.json"))
    ids = Tokenizer.load(folder).encode("one two three four five six")
    assert ids == backend.encode("one").ids[:1] + ids[1:]
    assert len(ids) == 6


def test_number_of_ids_counts_added_tokens(
    smollm2: Tokenizer, qwen3: Tokenizer, folder: Path
) -> None:
    assert smollm2.num_ids == 49152
    assert qwen3.num_ids == 151669
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_tokens(["<extra>"])
    backend.save(str(folder / "tokenizer.json"))
    assert Tokenizer.load(folder).num_ids == 49153


def test_named_tokens_come_from_both_files_and_the_config_wins(folder: Path) -> None:
    write(
        folder, "special_tokens_map.json", {"bos_token": "<|im_start|>", "pad_token": "<file_sep>"}
    )
    write(
        folder,
        "tokenizer_config.json",
        {"pad_token": {"content": "<|endoftext|>", "special": True}, "unk_token": None},
    )
    assert Tokenizer.load(folder).special_tokens == {
        "bos_token": "<|im_start|>",
        "pad_token": "<|endoftext|>",
    }


def test_tokens_named_special_are_hidden_although_the_vocabulary_calls_them_ordinary(
    folder: Path,
) -> None:
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_tokens(["<turn>", "<tool>", "<plain>"])
    backend.save(str(folder / "tokenizer.json"))
    write(
        folder,
        "tokenizer_config.json",
        {"eos_token": "<turn>", "extra_special_tokens": {"tool_token": "<tool>"}},
    )
    tokenizer = Tokenizer.load(folder)
    ids = tokenizer.encode("<turn>a<tool>b<plain>", add_special_tokens=False)
    assert tokenizer.decode(ids) == "ab<plain>"
    assert {49152, 49153} <= tokenizer.special_token_ids
    assert 49154 not in tokenizer.special_token_ids


@pytest.mark.parametrize(
    ("config", "generation", "token", "expected"),
    [
        ({}, {}, None, set()),
        ({"eos_token_id": 7}, {}, None, {7}),
        ({"eos_token_id": [7, 8]}, {"eos_token_id": None}, None, {7, 8}),
        ({}, {"eos_token_id": [2, 0]}, "<|im_end|>", {0, 2}),
        ({"eos_token_id": 5}, {"eos_token_id": 6}, "<|im_end|>", {2, 5, 6}),
        (None, None, "<|im_end|>", {2}),
    ],
)
def test_end_ids_are_the_union_of_all_files(
    folder: Path,
    config: dict[str, object] | None,
    generation: dict[str, object] | None,
    token: str | None,
    expected: set[int],
) -> None:
    # EOS-01
    if config is not None:
        write(folder, "config.json", config)
    if generation is not None:
        write(folder, "generation_config.json", generation)
    if token is not None:
        write(folder, "tokenizer_config.json", {"eos_token": token})
    assert Tokenizer.load(folder).eos_token_ids == expected


def test_qwen3_ends_on_both_of_its_end_ids(qwen3_dir: Path, tmp_path: Path) -> None:
    # EOS-01
    shutil.copytree(qwen3_dir, tmp_path / "qwen3")
    write(tmp_path / "qwen3", "config.json", {"eos_token_id": 151645})
    write(tmp_path / "qwen3", "generation_config.json", {"eos_token_id": [151645, 151643]})
    assert Tokenizer.load(tmp_path / "qwen3").eos_token_ids == {151645, 151643}


@pytest.mark.parametrize("value", [-1, "2", True, [2, -3], [[2]], 2.0])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_end_id_that_is_no_id_is_refused_by_file_and_key(
    folder: Path, file: str, value: object
) -> None:
    write(folder, file, {"eos_token_id": value})
    with pytest.raises(TokenizerFileInvalid, match=f"{file}: eos_token_id must be a token id"):
        Tokenizer.load(folder)


def test_end_token_outside_the_vocabulary_is_refused(folder: Path) -> None:
    write(folder, "tokenizer_config.json", {"eos_token": "<nowhere>"})
    with pytest.raises(
        TokenizerFileInvalid, match=r"tokenizer_config\.json: eos_token '<nowhere>'"
    ):
        Tokenizer.load(folder)


def test_missing_tokenizer_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerFileInvalid, match=r"tokenizer\.json: file is missing"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": "1.0"}'])
def test_file_that_is_no_tokenizer_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerFileInvalid, match=r"tokenizer\.json: is not a tokenizer"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff"])
def test_small_file_that_is_no_object_is_named(folder: Path, content: bytes) -> None:
    (folder / "tokenizer_config.json").write_bytes(content)
    with pytest.raises(TokenizerFileInvalid, match=r"tokenizer_config\.json: "):
        Tokenizer.load(folder)


def test_decoder_that_cannot_be_streamed_is_refused(folder: Path) -> None:
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.decoder = tokenizers.decoders.CTC()
    backend.save(str(folder / "tokenizer.json"))
    with pytest.raises(TokenizerFileInvalid, match=r"decoder of the kind \['CTC'\]"):
        Tokenizer.load(folder)
