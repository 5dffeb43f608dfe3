"""Runs make targets one after another, each under a time limit, and prints how long each took.

`a+b` are two parts that run side by side; what they print comes when each has ended. Goes on
after a failure, so that one run shows everything. Knows nothing of what a target does.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO

GRACE_S = 10.0


@dataclass(frozen=True)
class Outcome:
    """How one part went."""

    name: str
    verdict: str
    seconds: float


def run_side_by_side(names: list[str], *, limit_s: float) -> list[Outcome]:
    """Runs the parts at once, and prints what each wrote when it has ended."""
    running: list[subprocess.Popen[bytes]] = []

    def run(name: str) -> Outcome:
        with tempfile.TemporaryFile() as output:
            outcome = run_part(name, limit_s=limit_s, output=output, running=running)
            output.seek(0)
            text = output.read().decode(errors="replace")
        print(f"\n=== {name} ===\n{text}", flush=True)
        return outcome

    with ThreadPoolExecutor(len(names)) as pool:
        try:
            return list(pool.map(run, names))
        except KeyboardInterrupt:
            for process in running:
                end_group(process)
            raise


def run_part(
    name: str,
    *,
    limit_s: float,
    output: IO[bytes] | None = None,
    running: list[subprocess.Popen[bytes]] | None = None,
) -> Outcome:
    """Runs `make NAME` in a process group of its own, which is ended when the time is up.

    Without `output` it prints as it goes. Its process is added to `running`.
    """
    if output is None:
        print(f"\n=== {name} ===", flush=True)
    started = time.monotonic()
    with subprocess.Popen(
        ["make", "--no-print-directory", name],
        start_new_session=True,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
    ) as process:
        if running is not None:
            running.append(process)
        try:
            code = process.wait(timeout=limit_s)
            verdict = "ok" if code == 0 else f"FAILED ({code})"
        except subprocess.TimeoutExpired:
            end_group(process)
            verdict = f"FAILED (over its limit of {limit_s:.0f} s)"
        except KeyboardInterrupt:
            end_group(process)
            raise
    return Outcome(name, verdict, time.monotonic() - started)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Asks the whole group to end, then insists."""
    for wish in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, wish)
            process.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return


def main() -> None:
    """Runs the parts in the order given; fails when one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", metavar="TARGET")
    parser.add_argument("--limit-s", type=float, default=900.0, help="time limit of each part")
    arguments = parser.parse_args()
    outcomes: list[Outcome] = []
    for part in arguments.parts:
        names = part.split("+")
        if len(names) == 1:
            outcomes.append(run_part(part, limit_s=arguments.limit_s))
        else:
            outcomes += run_side_by_side(names, limit_s=arguments.limit_s)
    print()
    for outcome in outcomes:
        print(f"  {outcome.name:16} {outcome.seconds:7.1f} s  {outcome.verdict}")
    sys.exit(any(outcome.verdict != "ok" for outcome in outcomes))


if __name__ == "__main__":
    main()
