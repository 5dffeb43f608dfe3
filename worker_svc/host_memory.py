"""How much memory this machine still has for us. Knows nothing of what it is for."""

from pathlib import Path

_MEMORY_INFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(memory_info: Path = _MEMORY_INFO, cgroup: Path = _CGROUP) -> int | None:
    """Bytes that can be taken without swapping, within the container's limit; None if unknown."""
    known = [_machine_bytes(memory_info), _container_bytes(cgroup)]
    return min((value for value in known if value is not None), default=None)


def _machine_bytes(memory_info: Path) -> int | None:
    for line in _text(memory_info).splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _container_bytes(cgroup: Path) -> int | None:
    limit, used = _text(cgroup / "memory.max").strip(), _text(cgroup / "memory.current").strip()
    if not limit.isdigit() or not used.isdigit():
        return None
    # file pages count as used, although the kernel gives them up
    pairs = (line.split() for line in _text(cgroup / "memory.stat").splitlines())
    cached = sum(int(pair[1]) for pair in pairs if pair[0] == "inactive_file")
    return max(0, int(limit) - int(used) + cached)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
