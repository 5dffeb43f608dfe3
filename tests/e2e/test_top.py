"""`octavo top` against a real replica."""

from pathlib import Path

import pytest

from octavo.cli.main import main
from tests.e2e.replica import running_replica
from tests.fakes.checkpoints import make_tiny_checkpoint


def test_one_look_finds_every_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_tiny_checkpoint(tmp_path, family="qwen3")
    with running_replica(folder, hash_worker=["--num-kv-blocks", "40"]) as replica:
        assert main(["top", "--once", "--target", replica.addresses.admin]) == 0
    out = capsys.readouterr().out
    assert "ready" in out
    assert "39 of 16 tokens" in out
    up = {line.split()[0] for line in out.splitlines() if " up " in line}
    assert {"supervisor", "core", "frontend-0", "rank-0"} <= up
