"""Fetches Prometheus and promtool once, from Debian's package, into the developers' cache folder.

apt checks the package's signature. The package is unpacked, not installed: no daemon starts and
the system stays as it was. Knows nothing of metrics.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.fetch_helm import cache_folder, sole_fetcher

PROGRAMS = ("prometheus", "promtool")
PACKAGE = "prometheus"
APT_LIMIT_S = 300


class CannotFetch(Exception):
    """apt did not bring the package; the text says what it answered and what helps."""


def program(name: str) -> Path:
    """Where `prometheus` or `promtool` lies once fetched."""
    return cache_folder() / f"{name}-debian"


def fetch() -> None:
    """Brings both programs, if one is missing; safe when two start at once. Raises CannotFetch."""
    with sole_fetcher():
        if all(program(name).exists() for name in PROGRAMS):
            return
        sys.stdout.write("Fetching Prometheus\n")
        with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
            take_programs(download(Path(folder)), Path(folder) / "unpacked")


def download(folder: Path) -> Path:
    """The package; the lists of packages are fetched first where there are none."""
    # apt would warn that its own user cannot write here
    command = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", PACKAGE]
    done = _run(command, folder)
    if done.returncode != 0:
        update = _run(["apt-get", "-q", "update"], folder)
        done = _run(command, folder)
        if done.returncode != 0:
            raise CannotFetch(
                f"apt-get cannot download {PACKAGE}:\n{update.stderr}{done.stderr}"
                "It needs Debian's package lists: run `apt-get update` as root, then try again."
            )
    return next(folder.glob("*.deb"))


def take_programs(package: Path, unpacked: Path) -> None:
    """Puts the programs of a package in their places."""
    subprocess.run(["dpkg-deb", "-x", str(package), str(unpacked)], check=True, timeout=60)
    for name in PROGRAMS:
        (unpacked / "usr/bin" / name).replace(program(name))


def _run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(command), cwd=folder, capture_output=True, text=True, check=False, timeout=APT_LIMIT_S
    )


def main() -> None:
    """Fetches what is not there yet."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        sys.exit("the operations tests take Prometheus from a Debian package: apt-get is missing")
    try:
        fetch()
    except CannotFetch as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
