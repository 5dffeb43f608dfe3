"""Which tests each kind of run takes, tried on a folder of its own with the real conftest."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TESTS = """
import hypothesis, hypothesis.stateful, hypothesis.strategies as st, pytest

def test_everyday(): pass

@pytest.mark.long("soak")
def test_soak(): pass

@pytest.mark.long("fuzz")
def test_fuzz(): pass

@hypothesis.given(st.booleans())
def test_generated(value): pass

class Machine(hypothesis.stateful.RuleBasedStateMachine):
    @hypothesis.stateful.rule()
    def step(self): pass

TestMachine = Machine.TestCase
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with two small test files beside the real configuration."""
    for name in ("conftest.py", "without_torch.py"):
        target = tmp_path / "tests" / name
        target.parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "tests" / name, target)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for area in ("unit", "e2e"):
        (tmp_path / "tests" / area).mkdir()
        (tmp_path / "tests" / area / f"test_{area}.py").write_text(TESTS)
    return tmp_path


def chosen(folder: Path, *arguments: str) -> set[str]:
    """The tests that a run would take, as area:name."""
    done = pytest_in(folder, "--collect-only", "-q", *arguments)
    assert done.returncode == 0, done.stdout
    lines = [line for line in done.stdout.splitlines() if "::" in line]
    return {f"{line.split('/')[1]}:{line.rpartition('::')[2]}" for line in lines}


def pytest_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_plain_run_takes_no_long_test(folder: Path) -> None:
    assert chosen(folder, "tests/unit") == {
        "unit:test_everyday",
        "unit:test_generated",
        "unit:runTest",
    }


def test_a_long_run_takes_its_part_only(folder: Path) -> None:
    assert chosen(folder, "--long", "soak") == {"unit:test_soak", "e2e:test_soak"}


def test_folder_and_hypothesis_set_the_markers(folder: Path) -> None:
    assert chosen(folder, "-m", "e2e and not property") == {"e2e:test_everyday"}
    assert chosen(folder, "-m", "property and not e2e") == {
        "unit:test_generated",
        "unit:runTest",
    }


def test_without_torch_means_that_importing_it_fails(folder: Path) -> None:
    source = "import torch\ndef test_torch(): assert torch\n"
    (folder / "tests/unit/test_needs_torch.py").write_text(source)
    done = pytest_in(folder, "-p", "tests.without_torch", "tests/unit/test_needs_torch.py")
    assert done.returncode != 0
    assert "torch is blocked" in done.stdout
