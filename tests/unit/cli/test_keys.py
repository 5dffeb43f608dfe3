"""`octavo keys new`: a key for its holder, a record for the service, and no more of it anywhere."""

import json
from pathlib import Path

import pytest

from octavo.cli.main import main
from scheduler_svc.frontend.errors import Unauthenticated
from scheduler_svc.security.keys import KeyRing


def test_the_service_knows_the_key_by_its_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [
        "--tenant",
        "acme",
        "--max-requests",
        "3",
        "--priorities",
        "-1",
        "8",
        "--weight",
        "2.5",
    ]
    assert main(["keys", "new", *chosen]) == 0
    captured = capsys.readouterr()
    key = captured.err.strip()
    assert key not in captured.out
    (tmp_path / "keys.jsonl").write_text(captured.out)
    ring = KeyRing(flag="--api-keys-file", path=str(tmp_path / "keys.jsonl"))
    ring.load()
    caller = ring.caller([("authorization", f"Bearer {key}")])
    assert (caller.tenant, caller.max_requests, caller.weight) == ("acme", 3, 2.5)
    assert (caller.most_urgent, caller.least_urgent) == (-1, 8)
    with pytest.raises(Unauthenticated):
        ring.caller([("authorization", f"Bearer {json.loads(captured.out)['sha256']}")])


def test_a_key_goes_into_a_new_file_of_its_owner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "key"
    command = ["keys", "new", "--tenant", "acme", "--key-file", str(path)]
    assert main(command) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    key = path.read_text().strip()
    assert len(key) > 40
    captured = capsys.readouterr()
    assert key not in captured.out + captured.err
    assert main(command) == 1  # a key that is in use is not overwritten
    assert f"--key-file {path}" in capsys.readouterr().err
    assert path.read_text().strip() == key


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--tenant", "a b"], "--tenant"),
        (["--tenant", "a", "--max-requests", "-1"], "--max-requests"),
        (["--tenant", "a", "--priorities", "3", "2"], "--priorities"),
        (["--tenant", "a", "--weight", "0"], "--weight"),
        (["--tenant", "a", "--weight", "nan"], "--weight"),
    ],
)
def test_a_wrong_flag_is_named_and_no_key_made(
    flags: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "new", *flags]) == 1
    captured = capsys.readouterr()
    assert named in captured.err
    assert "octavo_" not in captured.err + captured.out
