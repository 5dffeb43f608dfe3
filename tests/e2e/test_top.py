"""`octavo top` against a real replica."""

import re
from pathlib import Path

import pytest

from octavo import Client
from octavo.cli.main import main
from tests.e2e.replica import running_replica, wait_until
from tests.fakes.checkpoints import make_tiny_checkpoint


def test_one_look_finds_every_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_tiny_checkpoint(tmp_path, family="qwen3")
    with running_replica(folder, hash_worker=["--num-kv-blocks", "40"]) as replica:
        asked = ["top", "--once", "--target", replica.addresses.admin]
        with Client(replica.target) as client:
            client.generate("hello", max_tokens=100, ignore_eos=True)
        seen = [""]

        def sees_the_answer() -> bool:
            assert main(asked) == 0
            seen.append(capsys.readouterr().out)
            return "first token     p50" in seen[-1]

        # the numbers of the last seconds come about a second later
        wait_until(sees_the_answer, limit_s=20, otherwise=lambda: seen[-1])
    out = seen[-1]
    assert re.search(r"between tokens  p50 \d", out)
    assert "no request lives" in out
    assert "ready" in out
    assert "39 of 16 tokens" in out
    up = {line.split()[0] for line in out.splitlines() if " up " in line}
    assert {"supervisor", "core", "frontend-0", "rank-0"} <= up
