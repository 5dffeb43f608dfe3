"""What a rank refuses before it loads anything heavy, in words that name the flag or the file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.checkpoints import TinyModel, config_of
from tests.fakes.scripted_core import ScriptedCore
from tests.fakes.worker_process import running_worker
from worker_svc.config import InvalidConfig, WorkerConfig
from worker_svc.device_choice import choose_device
from worker_svc.model_choice import choose_model
from worker_svc.models.errors import ConfigError


def test_a_rank_is_checked_before_torch_is_imported() -> None:
    program = "import sys, worker_svc.rank; print('torch' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout == "False\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config_of(TinyModel())))
    return path


def config_for(folder: Path, **settings: int | str) -> WorkerConfig:
    return WorkerConfig(run_dir="x", model=str(folder), **settings)  # type: ignore[arg-type] # by name


def test_a_length_is_the_models_own_unless_a_shorter_one_is_asked_for(folder: Path) -> None:
    assert choose_model(config_for(folder)).max_model_len == 512
    assert choose_model(config_for(folder, max_model_len=100)).max_model_len == 100


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_model_len": 513}, "--max-model-len 513 exceeds what the model supports: 512"),
        (
            {"attention_backend": "fa3", "device": "cpu"},
            "--attention-backend fa3 does not run on a CPU",
        ),
    ],
)
def test_a_setting_that_cannot_be_met_is_named(
    folder: Path, settings: dict[str, int | str], words: str
) -> None:
    with pytest.raises(InvalidConfig, match=words):
        choose_model(config_for(folder, **settings))


def test_a_gpu_is_taken_where_there_is_one_unless_told_otherwise(tmp_path: Path) -> None:
    (tmp_path / "nvidia-uvm").touch()
    assert choose_device("auto", devices=tmp_path) == "cpu"
    (tmp_path / "nvidia1").touch()
    assert choose_device("auto", devices=tmp_path) == "cuda"
    assert choose_device("cpu", devices=tmp_path) == "cpu"
    assert choose_device("cuda", devices=tmp_path / "none") == "cuda"


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=f"--model {tmp_path / 'none'}: no such folder"):
        choose_model(config_for(tmp_path / "none"))


def test_a_config_that_is_not_json_is_named(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json: file: is not JSON"):
        choose_model(config_for(folder))


def test_a_refusal_reaches_the_core_in_the_words_of_the_rank(tmp_path: Path) -> None:
    flags = ["--model", str(tmp_path / "none")]
    with ScriptedCore(tmp_path) as core, running_worker(tmp_path, flags, module="worker_svc"):
        state = core.state(lambda s: bool(s.permanent_error))
        assert state.permanent_error == f"--model {tmp_path / 'none'}: no such folder"
        assert state.num_restarts == 0
