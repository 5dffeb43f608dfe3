"""What an idle service costs: processor time and memory of each of its processes.

python bench/idle.py [--seconds 30] [--json FILE]
"""

import argparse
import json
import sys
import time
from pathlib import Path

import psutil

from octavo.models.resolve import DEFAULT_MODEL, resolve_model
from octavo.spawn import LocalService

_SETTLE_S = 5.0


def processes_of(root: int) -> dict[str, psutil.Process]:
    """Living descendants that are ours, by what they run."""
    found = {}
    for process in psutil.Process(root).children(recursive=True):
        words = process.cmdline()
        if "-m" in words:
            found[f"{words[words.index('-m') + 1]} {process.pid}"] = process
    return found


def cpu_s(process: psutil.Process) -> float:
    """Processor seconds used so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to watch")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    service = LocalService(["--model", str(resolve_model(DEFAULT_MODEL).path)])
    service.start(limit_s=180.0)
    try:
        time.sleep(_SETTLE_S)
        processes = processes_of(psutil.Process().pid)
        before = {name: cpu_s(process) for name, process in processes.items()}
        time.sleep(options.seconds)
        result = {
            name: {
                "percent_of_a_core": 100 * (cpu_s(process) - before[name]) / options.seconds,
                "resident_mb": process.memory_info().rss / 1e6,
            }
            for name, process in processes.items()
        }
    finally:
        service.stop()
    for name, numbers in result.items():
        cpu, memory = numbers["percent_of_a_core"], numbers["resident_mb"]
        print(f"{name:<40} {cpu:6.2f} % of a core {memory:8.0f} MB")
    total = sum(numbers["percent_of_a_core"] for numbers in result.values())
    print(f"{'all':<40} {total:6.2f} % of a core")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
