"""What `import octavo` loads in a fresh interpreter. Knows nothing of what the SDK does."""

import json
import subprocess
import sys
from importlib.metadata import distribution, packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# The stub import that scheduler_svc and worker_svc use, and the plainest use of the SDK.
LIGHT_IMPORTS = (
    "octavo",
    "octavo.v1.inference_pb2",
    "octavo.v1.admin_pb2",
    "octavo.internal.v1.step_pb2",
    "octavo.internal.v1.engine_pb2",
    "octavo.internal.v1.control_pb2",
)

REFUSE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(name + " is not a base dependency")
sys.meta_path.insert(0, Refuse())
"""


def run_fresh(program: str) -> str:
    """The output of a program in a new interpreter where every warning is an error."""
    completed = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


@pytest.mark.parametrize("module", LIGHT_IMPORTS)
def test_importing_the_package_or_a_message_loads_no_grpc(module: str) -> None:
    program = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    loaded = set(json.loads(run_fresh(program)))
    assert module in loaded
    assert not {"grpc", "torch", "zmq", "numpy"} & loaded


def test_every_public_name_loads_with_the_base_dependencies_alone() -> None:
    refused = packages_outside({"octavo", *base_dependencies()})
    program = (
        f"REFUSED = {sorted(refused)!r}\n{REFUSE}\n"
        "import octavo\n"
        "print(*(name for name in octavo.__all__ if getattr(octavo, name) is not None))\n"
    )
    names = run_fresh(program).split()
    assert {"Client", "AsyncClient", "Engine"} <= set(names)
    assert "numpy" in refused


def base_dependencies() -> set[str]:
    """The distributions that `pip install octavo` brings, without any extra."""
    found: set[str] = set()
    queue = ["octavo"]
    while queue:
        requirements = [Requirement(text) for text in distribution(queue.pop()).requires or []]
        needed = {r.name for r in requirements if not r.marker or r.marker.evaluate({"extra": ""})}
        queue.extend(needed - found)
        found |= needed
    return found


def packages_outside(distributions: set[str]) -> set[str]:
    """Importable top-level names that none of these distributions provides."""
    wanted = {canonicalize_name(name) for name in distributions}
    return {
        package
        for package, providers in packages_distributions().items()
        if package.isidentifier()
        and not any(canonicalize_name(provider) in wanted for provider in providers)
    }
