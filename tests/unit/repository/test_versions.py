"""Numbers that stand in several files and must agree. Knows nothing of what they mean."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
STUBS = sorted((ROOT / "client/octavo").rglob("*_pb2*.py"))


def lower_bound(name: str) -> Version:
    """The oldest version of a base dependency that the package accepts."""
    requirements = [Requirement(text) for text in PROJECT["dependencies"]]
    bounds = next(r.specifier for r in requirements if r.name == name)
    return max(Version(bound.version) for bound in bounds if bound.operator == ">=")


def versions_in_stubs(pattern: str) -> set[Version]:
    """What generated files say about the library they need."""
    return {Version(found) for path in STUBS for found in re.findall(pattern, path.read_text())}


def test_stubs_load_with_the_oldest_protobuf_that_the_package_accepts() -> None:
    wanted = versions_in_stubs(r"# Protobuf Python Version: (\S+)")
    assert wanted
    assert max(wanted) <= lower_bound("protobuf")


def test_stubs_load_with_the_oldest_grpcio_that_the_package_accepts() -> None:
    wanted = versions_in_stubs(r"GRPC_GENERATED_VERSION = '(\S+)'")
    assert wanted
    assert max(wanted) <= lower_bound("grpcio")


def test_base_install_is_the_sdk_only() -> None:
    assert {Requirement(text).name for text in PROJECT["dependencies"]} == {"grpcio", "protobuf"}


def test_installed_package_has_the_project_version() -> None:
    assert version("octavo") == PROJECT["version"]


def test_chart_deploys_the_project_version() -> None:
    chart = yaml.safe_load((ROOT / "helm/octavo/Chart.yaml").read_text())
    assert chart["appVersion"] == PROJECT["version"]


def test_every_direct_requirement_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {Requirement(line) for line in lines if line and not line.startswith("#")}
    pinned = {pin.name.lower().replace("_", "-"): pin for pin in pins}
    extras = PROJECT["optional-dependencies"]
    needed = [
        Requirement(r) for name in ("scheduler", "worker", "test", "dev") for r in extras[name]
    ]
    for requirement in [r for r in needed if r.name != "octavo"]:
        pin = next(iter(pinned[requirement.name.lower()].specifier))
        assert pin.operator == "=="
        assert requirement.specifier.contains(pin.version), requirement
