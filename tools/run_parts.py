"""Runs make targets one after another, each under a time limit, and prints how long each took.

Goes on after a failure, so that one run shows everything. Knows nothing of what a target does.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

GRACE_S = 10.0


@dataclass(frozen=True)
class Outcome:
    """How one part went."""

    name: str
    verdict: str
    seconds: float


def run_part(name: str, *, limit_s: float) -> Outcome:
    """Runs `make NAME` in a process group of its own, which is ended when the time is up."""
    print(f"\n=== {name} ===", flush=True)
    started = time.monotonic()
    with subprocess.Popen(
        ["make", "--no-print-directory", name], start_new_session=True
    ) as process:
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
    outcomes = [run_part(name, limit_s=arguments.limit_s) for name in arguments.parts]
    print()
    for outcome in outcomes:
        print(f"  {outcome.name:16} {outcome.seconds:7.1f} s  {outcome.verdict}")
    sys.exit(any(outcome.verdict != "ok" for outcome in outcomes))


if __name__ == "__main__":
    main()
