"""A name becomes a folder, or an error that says what is missing and what to do."""

import json
from pathlib import Path

import pytest

from octavo.models import packages
from octavo.models.errors import (
    DownloadFailed,
    MissingPackage,
    ModelFileCorrupt,
    ModelFolderInvalid,
    ModelNotFound,
)
from octavo.models.packages import require_packages
from octavo.models.pull import pull_model
from octavo.models.resolve import DEFAULT_MODEL, ModelFolder, resolve_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def cached_repository(hub_cache: Path, name: str, *, files: dict[str, str]) -> Path:
    """Lay out a repository as the hub's library keeps it."""
    repository = hub_cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for file, content in files.items():
        (snapshot / file).write_text(content)
    return snapshot


def test_folder_with_a_config_is_a_model_named_after_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert resolve_model(folder) == ModelFolder(path=folder, name="my-model")
    assert resolve_model(f"{folder}/") == ModelFolder(path=folder, name="my-model")


def test_relative_folder_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert resolve_model(".") == ModelFolder(path=tmp_path, name=tmp_path.name)


def test_folder_without_config_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderInvalid, match=r"missing config\.json") as caught:
        resolve_model(tmp_path)
    assert caught.value.missing == ("config.json",)


def test_folder_with_an_index_names_each_missing_shard(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "a.safetensors").write_text("")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFolderInvalid) as caught:
        resolve_model(tmp_path)
    assert caught.value.missing == ("b.safetensors",)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_broken_index_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelFileCorrupt, match=r"model\.safetensors\.index\.json.*weight_map"):
        resolve_model(tmp_path)


@pytest.mark.parametrize("name", ["", "./nowhere", "/no/where", "~/no-such-model", "a/b/c"])
def test_path_that_is_not_there_is_never_taken_for_a_repository(name: str) -> None:
    with pytest.raises(ModelNotFound, match="no such folder"):
        resolve_model(name)


def test_file_is_not_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "weights.gguf"
    file.write_text("")
    with pytest.raises(ModelNotFound, match="no such folder"):
        resolve_model(file)


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "gpt2", "not a name"])
def test_unknown_name_says_how_to_download_it(name: str) -> None:
    with pytest.raises(ModelNotFound, match=f"octavo models pull {name}"):
        resolve_model(name)


def test_cached_repository_is_found_by_its_id(hub_cache: Path) -> None:
    snapshot = cached_repository(hub_cache, "org/model", files={"config.json": "{}"})
    assert resolve_model("org/model") == ModelFolder(path=snapshot, name="org/model")


def test_half_downloaded_repository_names_what_is_missing(hub_cache: Path) -> None:
    cached_repository(hub_cache, "org/model", files={"tokenizer.json": "{}"})
    with pytest.raises(ModelFolderInvalid, match=r"missing config\.json"):
        resolve_model("org/model")


def test_default_model_has_everything_a_service_reads() -> None:
    model = resolve_model(DEFAULT_MODEL)
    assert model.name == "smollm2-135m-instruct"
    config = json.loads((model.path / "config.json").read_text())
    shape = {
        key: config[key]
        for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
    }
    assert shape == {
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "num_attention_heads": 9,
        "vocab_size": 49152,
    }
    assert config["rope_parameters"]["rope_theta"] == 1e5
    for file in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        assert (model.path / file).is_file()


def test_missing_package_names_itself_and_the_extra() -> None:
    with pytest.raises(MissingPackage, match=r"octavo\[scheduler\].*pip install no_such_package"):
        require_packages(("json", "no_such_package"), purpose="this test")


@pytest.mark.usefixtures("hub_cache")
def test_without_the_hub_library_a_repository_id_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda _name: None)
    with pytest.raises(ModelNotFound, match="huggingface_hub"):
        resolve_model("org/model")
    with pytest.raises(MissingPackage, match="huggingface_hub"):
        pull_model("org/model")


@pytest.mark.usefixtures("hub_cache")
def test_pull_without_a_network_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadFailed, match=r"org/model: huggingface\.co cannot be reached"):
        pull_model("org/model")


@pytest.mark.usefixtures("hub_cache")
def test_pull_of_something_that_is_no_repository_id_is_refused() -> None:
    with pytest.raises(ModelNotFound, match="not a repository id"):
        pull_model("not a name")
