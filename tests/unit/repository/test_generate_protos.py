"""Stubs follow the protos and nothing else is touched. Knows nothing of the messages."""

from pathlib import Path

import pytest

from tools import generate_protos


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    write(tmp_path / "fresh/octavo/v1/a_pb2.py", "a")
    write(tmp_path / "fresh/octavo/v1/a_pb2_grpc.py", "a grpc")
    return tmp_path / "fresh"


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    write(tmp_path / "client/octavo/v1/__init__.py", "kept")
    write(tmp_path / "client/octavo/v1/a_pb2.py", "old a")
    write(tmp_path / "client/octavo/v1/gone_pb2.pyi", "its proto was removed")
    return tmp_path / "client"


def test_missing_changed_and_left_over_stubs_are_stale(fresh: Path, committed: Path) -> None:
    stale = generate_protos.stale_files(fresh, committed)
    assert [path.name for path in stale] == ["a_pb2.py", "a_pb2_grpc.py", "gone_pb2.pyi"]


def test_installed_stubs_are_never_stale_and_other_files_stay(fresh: Path, committed: Path) -> None:
    generate_protos.install(fresh, committed)
    assert generate_protos.stale_files(fresh, committed) == []
    assert (committed / "octavo/v1/a_pb2.py").read_text() == "a"
    assert (committed / "octavo/v1/__init__.py").read_text() == "kept"
    assert not (committed / "octavo/v1/gone_pb2.pyi").exists()
