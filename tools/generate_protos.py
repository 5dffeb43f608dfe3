"""Generates the stubs in client/octavo from protos/, or with --check says which are out of date.

Knows the folders and protoc's options; knows nothing of what the messages mean.
"""

import argparse
import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
CLIENT = ROOT / "client"
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def generate(into: Path) -> None:
    """Runs protoc over every proto, in one order, so that the output is the same everywhere."""
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    if not sources:
        sys.exit(f"no .proto file under {PROTOS}")
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"--proto_path={PROTOS}",
        *(f"--{kind}_out={into}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")),
        *sources,
    ]
    # protoc finds its plug-ins on the path; they live beside this interpreter
    binaries = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": os.pathsep.join([binaries, os.environ.get("PATH", "")])}
    completed = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    if completed.returncode != 0:
        sys.exit(completed.stderr)


def generated_files(under: Path) -> set[Path]:
    """The generated files below a folder, relative to it."""
    return {path.relative_to(under) for pattern in GENERATED for path in under.rglob(pattern)}


def stale_files(fresh: Path, committed: Path) -> list[Path]:
    """Files that are missing, left over or different, in order."""
    wanted, present = generated_files(fresh), generated_files(committed)
    changed = {
        path
        for path in wanted & present
        if not filecmp.cmp(fresh / path, committed / path, shallow=False)
    }
    return sorted((wanted ^ present) | changed)


def install(fresh: Path, committed: Path) -> None:
    """Replaces what differs and removes what no proto makes any more; __init__ files stay."""
    for path in stale_files(fresh, committed):
        if (fresh / path).exists():
            (committed / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(fresh / path, committed / path)
        else:
            (committed / path).unlink()


def main() -> None:
    """Generates into a temporary folder first: a failing protoc leaves the stubs as they were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, fail on a difference")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        generate(fresh)
        if not arguments.check:
            install(fresh, CLIENT)
            return
        stale = stale_files(fresh, CLIENT)
    if stale:
        names = "\n".join(f"  client/{path}" for path in stale)
        sys.exit(f"out of date with protos/ (run `make protos` and commit):\n{names}")


if __name__ == "__main__":
    main()
