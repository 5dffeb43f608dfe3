"""Loading: exactly the tensors the model needs, or a refusal that names the tensor or the file."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fakes.checkpoints import (
    Floats,
    TinyModel,
    make_tiny_checkpoint,
    tensors_of,
    write_tensors,
)
from tests.model.rigs import CPU, Rig, Row, load, random_tokens
from worker_svc.models.errors import (
    CheckpointError,
    MissingTensorsError,
    TensorShapeError,
    UnreadableFileError,
    UnusedTensorsError,
)
from worker_svc.weights import loader
from worker_svc.weights.dtype import choose_dtype, read_processor_flags

TINY = TinyModel(family="qwen3")
NORM = "model.layers.1.input_layernorm.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"
FIRST_FILE = "model-00001-of-00003.safetensors"
INDEX = "model.safetensors.index.json"


def logits_of(folder: Path) -> torch.Tensor:
    return Rig(load(folder)).logits([Row(0, 0, random_tokens(20))])


def written(folder: Path, tensors: dict[str, Floats], model: TinyModel = TINY) -> Path:
    """A checkpoint with these tensors instead of its own."""
    make_tiny_checkpoint(folder, model=model)
    write_tensors(folder, tensors)
    return folder


def test_sharded_files_load_as_one_file_does(tmp_path: Path) -> None:
    one = make_tiny_checkpoint(tmp_path / "one", model=TINY)
    three = make_tiny_checkpoint(tmp_path / "three", model=TINY, num_files=3)
    assert torch.equal(logits_of(one), logits_of(three))


def test_a_tensor_larger_than_a_piece_is_copied_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_tiny_checkpoint(tmp_path, model=TINY)
    expected = logits_of(folder)
    monkeypatch.setattr(loader, "_PIECE_BYTES", 1000)  # rows of 192 bytes: 5 rows a piece
    assert torch.equal(logits_of(folder), expected)


def test_bfloat16_weights_run_in_float32_with_the_same_values(tmp_path: Path) -> None:
    stored = make_tiny_checkpoint(tmp_path / "half", model=replace(TINY, stored_dtype="bfloat16"))
    rounded = {
        name: torch.from_numpy(values).bfloat16().float().numpy()
        for name, values in tensors_of(TINY)
    }
    full = written(tmp_path / "full", rounded)
    assert torch.equal(logits_of(stored), logits_of(full))


def test_progress_counts_every_byte_once(tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []
    load(make_tiny_checkpoint(tmp_path, model=TINY), progress=lambda *at: reports.append(at))
    total = sum(values.nbytes for _, values in tensors_of(TINY))
    assert reports[0] == (0, total)
    assert reports[-1] == (total, total)
    assert reports == sorted(reports)


def test_old_llama_files_may_carry_rotary_frequencies(tmp_path: Path) -> None:
    model = TinyModel(family="llama")
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    folder = written(tmp_path, {**dict(tensors_of(model)), **extra}, model)
    assert bool(logits_of(folder).isfinite().all())


class TestTiedHead:
    """Scenario LD-02: tied or not, with or without a head in the files."""

    @staticmethod
    def make(folder: Path, *, tied: bool, head: Floats | None) -> Path:
        model = replace(TINY, tied=tied)
        tensors = dict(tensors_of(replace(TINY, tied=True)))
        if head is not None:
            tensors["lm_head.weight"] = head
        return written(folder, tensors, model)

    @pytest.fixture
    def embedding(self) -> Floats:
        return dict(tensors_of(TINY))["model.embed_tokens.weight"]

    def test_equal_head_changes_nothing(
        self, tmp_path: Path, embedding: Floats, caplog: pytest.LogCaptureFixture
    ) -> None:
        without = self.make(tmp_path / "without", tied=True, head=None)
        same = self.make(tmp_path / "same", tied=True, head=embedding)
        assert torch.equal(logits_of(same), logits_of(without))
        assert not caplog.records

    def test_other_head_wins_and_says_so(
        self, tmp_path: Path, embedding: Floats, caplog: pytest.LogCaptureFixture
    ) -> None:
        tied = self.make(tmp_path / "tied", tied=True, head=embedding[::-1].copy())
        untied = self.make(tmp_path / "untied", tied=False, head=embedding[::-1].copy())
        with caplog.at_level(logging.WARNING):
            found = logits_of(tied)
        assert torch.equal(found, logits_of(untied))
        assert "lm_head.weight differs from model.embed_tokens.weight" in caplog.text

    def test_untied_head_must_be_there(self, tmp_path: Path) -> None:
        with pytest.raises(MissingTensorsError) as refusal:
            load(self.make(tmp_path, tied=False, head=None))
        assert refusal.value.names == ("lm_head.weight",)

    def test_tied_head_of_another_shape_is_refused(self, tmp_path: Path, embedding: Floats) -> None:
        with pytest.raises(TensorShapeError, match=r"lm_head\.weight"):
            load(self.make(tmp_path, tied=True, head=embedding[:-1]))


Tensors = dict[str, Floats]


def without(tensors: Tensors) -> Tensors:
    return {name: values for name, values in tensors.items() if name not in {NORM, DOWN}}


def renamed(tensors: Tensors) -> Tensors:
    return {name.replace("down_proj", "out_proj"): values for name, values in tensors.items()}


def with_extra(tensors: Tensors) -> Tensors:
    bias = np.ones(48, np.float32)
    return {**tensors, "model.layers.0.self_attn.o_proj.bias": bias, DOWN + "_scale": bias}


def transposed(tensors: Tensors) -> Tensors:
    return {**tensors, DOWN: np.ascontiguousarray(tensors[DOWN].T)}


def flattened(tensors: Tensors) -> Tensors:
    return {**tensors, DOWN: tensors[DOWN].reshape(-1)}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (without, MissingTensorsError, f"missing 2 tensors: {DOWN}, {NORM}"),
        (renamed, MissingTensorsError, DOWN),
        (with_extra, UnusedTensorsError, "model.layers.0.self_attn.o_proj.bias"),
        (transposed, TensorShapeError, f"{DOWN} is shape [80, 48], the model needs shape [48, 80]"),
        (flattened, TensorShapeError, f"{DOWN} is shape [3840]"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(
    tmp_path: Path,
    change: Callable[[Tensors], Tensors],
    error: type[CheckpointError],
    words: str,
) -> None:
    # scenario LD-03
    folder = written(tmp_path, change(dict(tensors_of(TINY))))
    with pytest.raises(error) as refusal:
        load(folder)
    assert words in str(refusal.value)
    assert str(tmp_path) in str(refusal.value)


def test_a_long_list_of_missing_tensors_is_cut(tmp_path: Path) -> None:
    with pytest.raises(MissingTensorsError, match=r"missing 24 tensors: .* and 16 more"):
        load(written(tmp_path, {"lm_head.weight": dict(tensors_of(TINY))["lm_head.weight"]}))


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def header_broken(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:8] + b"?" + content[9:])


def header_endless(file: Path) -> None:
    file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:])


def replaced_by_pointer(file: Path) -> None:
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def removed(file: Path) -> None:
    file.unlink()


BREAKS = (cut_short, emptied, header_broken, header_endless, replaced_by_pointer, removed)


@pytest.mark.parametrize("break_file", BREAKS)
@pytest.mark.parametrize("num_files", [1, 3])
def test_a_file_that_cannot_be_read_is_refused_by_name(
    tmp_path: Path, break_file: Callable[[Path], None], num_files: int
) -> None:
    # scenario LD-03
    make_tiny_checkpoint(tmp_path, model=TINY, num_files=num_files)
    file = tmp_path / (FIRST_FILE if num_files == 3 else "model.safetensors")
    break_file(file)
    with pytest.raises(UnreadableFileError) as refusal:
        load(tmp_path)
    assert refusal.value.path == file
    assert str(file) in str(refusal.value)


def test_integer_weights_are_refused_by_name(tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path, model=TINY)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"dtype": "F32"', b'"dtype": "I32"'))
    with pytest.raises(TensorShapeError, match="stored as I32"):
        load(tmp_path)


INDEXES: list[tuple[str, str]] = [
    ("{", "weight_map"),
    ("[]", "weight_map"),
    ('{"weight_map": []}', "weight_map"),
    (json.dumps({"weight_map": {NORM: "../other.safetensors"}}), "elsewhere"),
]


@pytest.mark.parametrize(("content", "words"), INDEXES)
def test_a_broken_index_is_refused_by_name(tmp_path: Path, content: str, words: str) -> None:
    make_tiny_checkpoint(tmp_path, model=TINY, num_files=3)
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(UnreadableFileError, match=words) as refusal:
        load(tmp_path)
    assert refusal.value.path == tmp_path / INDEX


def test_a_tensor_that_the_index_promises_must_be_in_a_file(tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path, model=TINY, num_files=3)
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"]["model.promised.weight"] = FIRST_FILE
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(MissingTensorsError, match=r"model\.promised\.weight"):
        load(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path, model=TINY, num_files=3)
    content = (tmp_path / FIRST_FILE).read_bytes()
    second = FIRST_FILE.replace("00001-of", "00002-of")
    (tmp_path / second).write_bytes(content)
    with pytest.raises(UnreadableFileError, match="another file has too"):
        load(tmp_path)


GPU = torch.device("cuda")


@pytest.mark.parametrize(
    ("requested", "stored", "device", "flags", "expected"),
    [
        ("auto", "bfloat16", CPU, {"avx2"}, torch.float32),
        ("auto", "bfloat16", CPU, {"avx512_bf16"}, torch.bfloat16),
        ("auto", "bfloat16", CPU, {"amx_bf16"}, torch.bfloat16),
        ("auto", "float32", CPU, {"amx_bf16"}, torch.float32),
        ("auto", "float16", CPU, {"amx_bf16"}, torch.float32),
        ("auto", "bfloat16", GPU, set[str](), torch.bfloat16),
        ("auto", "float32", GPU, set[str](), torch.bfloat16),
        ("float32", "bfloat16", CPU, {"amx_bf16"}, torch.float32),
        ("bfloat16", "float32", CPU, set[str](), torch.bfloat16),
    ],
)
def test_number_format_follows_device_processor_and_wish(
    requested: str, stored: str, device: torch.device, flags: set[str], expected: torch.dtype
) -> None:
    found = choose_dtype(requested, stored=stored, device=device, processor_flags=flags)
    assert found == expected


def test_float16_of_a_bfloat16_model_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    # scenario LD-05
    choose_dtype("float16", stored="bfloat16", device=GPU, processor_flags=())
    assert "NaN" in caplog.text


def test_processor_flags_are_read_from_linux(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nflags\t\t: fpu avx512_bf16 sse\n\nprocessor\t: 1\n")
    assert read_processor_flags(file) == {"fpu", "avx512_bf16", "sse"}
    assert read_processor_flags(tmp_path / "absent") == frozenset()
