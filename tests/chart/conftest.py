"""Helm as a function: values in, manifests or a refusal out. Knows nothing of their content."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools import fetch_helm

CHART = Path(__file__).resolve().parents[2] / "helm/octavo"
VALUES = sorted((Path(__file__).parent / "values").glob("*.yaml"))

Manifest = dict[str, Any]
Values = dict[str, Any]
Render = Callable[[Values], list[Manifest]]


@dataclass(frozen=True)
class Helm:
    """One version of Helm, pointed at the chart."""

    program: Path
    folder: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A Helm command, with its output."""
        return subprocess.run(
            [str(self.program), *arguments],
            env={"HOME": str(self.folder), "PATH": ""},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def render(self, values: Values) -> list[Manifest]:
        """The manifests that these values make."""
        done = self.template(values)
        assert done.returncode == 0, done.stderr
        return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]

    def refusal(self, values: Values) -> str:
        """What Helm says about values it must not accept."""
        done = self.template(values)
        assert done.returncode != 0, f"accepted: {values}"
        return done.stderr

    def template(self, values: Values) -> subprocess.CompletedProcess[str]:
        """Runs `helm template` over values given as data."""
        file = self.folder / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        return self.run("template", "demo", str(CHART), "--values", str(file))


@pytest.fixture(params=fetch_helm.RELEASES, ids=lambda release: f"helm-{release.version}")
def helm(request: pytest.FixtureRequest, tmp_path: Path) -> Helm:
    """Each supported Helm in turn."""
    return Helm(fetch_helm.program(request.param), tmp_path)


@pytest.fixture
def render(tmp_path: Path) -> Render:
    """Rendering with the newest Helm: enough for what both render alike."""
    return Helm(fetch_helm.program(fetch_helm.RELEASES[-1]), tmp_path).render
