"""Ranks as processes of any command: begun and ended together."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from worker_svc.model_digest import model_digest
from worker_svc.models.errors import UnreadableFileError
from worker_svc.rank_folder import RankFolder
from worker_svc.rank_start import RankStart
from worker_svc.ranks import RankGroup

LIMIT_S = 20.0
# the program gets the flags of its start; the rank is the third character from the end of --rank=N
OWN_RANK = "rank = next(a[-1] for a in sys.argv if a.startswith('--rank='))"


def starts(folder: Path, count: int) -> list[RankStart]:
    return [
        RankStart(
            group_incarnation=9,
            rank=rank,
            rendezvous=folder / "rendezvous",
            error_file=folder / f"error-{rank}",
            num_restarts=0,
        )
        for rank in range(count)
    ]


def spawn(folder: Path, program: str, *, count: int = 2) -> RankGroup:
    """Ranks that run this Python program."""
    command = [sys.executable, "-c", f"import os, sys, time\n{OWN_RANK}\n{program}"]
    return RankGroup.spawn(command, starts(folder, count), flags=[], environment=os.environ)


def reap_until(group: RankGroup, condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.01)
        group.reap()


def test_the_first_death_is_told_and_the_others_can_be_killed(tmp_path: Path) -> None:
    group = spawn(tmp_path, "sys.exit(3) if rank == '1' else time.sleep(60)")
    reap_until(group, lambda: group.first_death)
    assert group.first_death == "rank 1 ended with status 3"
    assert not group.is_over
    assert [bool(pid) for pid in group.pids()] == [True, False]
    group.kill("one died")
    reap_until(group, lambda: group.is_over)
    assert group.first_death == "rank 1 ended with status 3"
    assert group.pids() == [0, 0]
    assert group.permanent_error == ""


def test_status_78_is_permanent_in_the_words_of_the_rank(tmp_path: Path) -> None:
    (tmp_path / "error-0").write_text("--model x: no such folder")
    group = spawn(tmp_path, "sys.exit(78)", count=1)
    reap_until(group, lambda: group.is_over)
    assert group.permanent_error == "--model x: no such folder"


def test_a_permanent_error_counts_whichever_rank_ends_first(tmp_path: Path) -> None:
    program = "sys.exit(1) if rank == '0' else time.sleep(0.2) or sys.exit(78)"
    group = spawn(tmp_path, program)
    reap_until(group, lambda: group.is_over)
    assert group.first_death == "rank 0 ended with status 1"
    assert group.permanent_error == "rank 1 ended with status 78"


def test_a_command_that_does_not_exist_leaves_nothing(tmp_path: Path) -> None:
    before = psutil.Process().children()
    with pytest.raises(FileNotFoundError):
        RankGroup.spawn(
            [str(tmp_path / "none")], starts(tmp_path, 2), flags=[], environment=os.environ
        )
    assert psutil.Process().children() == before


def test_a_folder_is_private_and_forgets_one_start(tmp_path: Path) -> None:
    folder = RankFolder.create(tmp_path)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.error_file(5, 0).touch()
    folder.rendezvous(5).touch()
    folder.rendezvous(6).touch()
    folder.forget(5)
    assert folder.rendezvous(6).exists()
    assert not folder.error_file(5, 0).exists()
    assert not folder.rendezvous(5).exists()
    folder.remove()
    assert not folder.path.exists()


def test_a_folder_in_use_is_not_swept_and_a_stale_one_is(tmp_path: Path) -> None:
    used = RankFolder.create(tmp_path)
    stale = RankFolder.create(tmp_path)
    os.close(stale.lock)  # as if its supervisor had died
    third = RankFolder.create(tmp_path)
    assert used.path.exists()
    assert not stale.path.exists()
    for folder in (used, third):
        folder.remove()


def test_a_digest_changes_with_names_sizes_and_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": 1}')
    (tmp_path / "model.safetensors").write_bytes(bytes(10))
    digests = [model_digest(tmp_path)]
    (tmp_path / ".cache").write_text("hidden files do not matter")
    assert model_digest(tmp_path) == digests[0]
    (tmp_path / "config.json").write_text('{"a": 2}')
    digests.append(model_digest(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(bytes(11))
    digests.append(model_digest(tmp_path))
    (tmp_path / "more.json").write_text("{}")
    digests.append(model_digest(tmp_path))
    assert len(set(digests)) == 4
    assert all(len(digest) == 16 for digest in digests)


def test_a_folder_without_config_has_no_digest(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError):
        model_digest(tmp_path)
