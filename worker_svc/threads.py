"""How many processor cores this process may use. Knows nothing of what runs on them."""

import os
from pathlib import Path

_PROCESSOR_INFO = Path("/proc/cpuinfo")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def threads_per_rank(requested: int, *, num_ranks: int) -> int:
    """Threads for each CPU rank: as requested, or the usable physical cores over the ranks."""
    return requested or max(1, usable_cores() // num_ranks)


def usable_cores(processor_info: Path = _PROCESSOR_INFO, cgroup_limit: Path = _CGROUP_LIMIT) -> int:
    """Physical cores among the processors this process may run on, within its container's limit."""
    allowed = os.sched_getaffinity(0)
    cores = len(allowed)
    text = _text(processor_info)
    if "core id" in text:
        cores = len(
            {core for number, core in _cores_by_processor(text).items() if number in allowed}
        )
    return max(1, min(cores or len(allowed), _container_limit(_text(cgroup_limit)) or cores))


def _cores_by_processor(text: str) -> dict[int, tuple[str, str]]:
    """Processor number to (package, core), from Linux's list."""
    found = {}
    for entry in text.split("\n\n"):
        pairs = (line.partition(":") for line in entry.splitlines())
        facts = {name.strip(): value.strip() for name, _, value in pairs}
        if "processor" in facts:
            number = int(facts["processor"])
            found[number] = (facts.get("physical id", "0"), facts.get("core id", str(number)))
    return found


def _container_limit(text: str) -> int | None:
    """Whole cores of a cgroup's `quota period`; None without a limit."""
    quota, _, period = text.strip().partition(" ")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return max(1, int(quota) // int(period))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
