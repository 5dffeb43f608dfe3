"""What a worker learns of the machine it runs on, from files as Linux writes them."""

import os
from pathlib import Path

import pytest

from worker_svc.host_memory import available_bytes
from worker_svc.threads import threads_per_rank, usable_cores


def cpuinfo(path: Path, cores: list[tuple[int, int]]) -> Path:
    """One entry a processor: (package, core)."""
    path.write_text(
        "".join(
            f"processor\t: {number}\nphysical id\t: {package}\ncore id\t\t: {core}\n\n"
            for number, (package, core) in enumerate(cores)
        )
    )
    return path


def test_two_threads_of_a_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    info = cpuinfo(tmp_path / "cpuinfo", [(0, 0), (0, 0), (0, 1), (1, 0)])
    assert usable_cores(info, tmp_path / "none") == 3


def test_processors_this_process_may_not_use_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3})
    info = cpuinfo(tmp_path / "cpuinfo", [(0, 0), (0, 1), (0, 2), (0, 3)])
    assert usable_cores(info, tmp_path / "none") == 2


@pytest.mark.parametrize(
    ("limit", "cores"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("", 8)]
)
def test_a_container_limit_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    info = cpuinfo(tmp_path / "cpuinfo", [(0, core) for core in range(8)])
    (tmp_path / "cpu.max").write_text(limit)
    assert usable_cores(info, tmp_path / "cpu.max") == cores


def test_a_machine_that_tells_nothing_has_as_many_cores_as_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert usable_cores(tmp_path / "none", tmp_path / "none") == 3


def test_requested_threads_win_and_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert threads_per_rank(5, num_ranks=2) == 5
    assert threads_per_rank(0, num_ranks=10_000) == 1


def test_memory_is_what_the_machine_and_the_container_leave(tmp_path: Path) -> None:
    info = tmp_path / "meminfo"
    info.write_text("MemTotal: 4000 kB\nMemAvailable: 3000 kB\n")
    assert available_bytes(info, tmp_path) == 3000 * 1024
    (tmp_path / "memory.max").write_text("2000000\n")
    (tmp_path / "memory.current").write_text("1500000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 300000\n")
    assert available_bytes(info, tmp_path) == 800_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(info, tmp_path) == 3000 * 1024
    assert available_bytes(tmp_path / "none", tmp_path / "none") is None
