"""`python -m scheduler_svc.frontend --run-dir DIR --name NAME`: one frontend of a replica."""

import argparse
import sys
from pathlib import Path

from scheduler_svc.process import die_with_parent


def main() -> int:
    """Runs the process; returns its exit status."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m scheduler_svc.frontend")
    parser.add_argument("--run-dir", type=Path, required=True, help="the replica's run folder")
    parser.add_argument("--name", required=True, help="this frontend's name, such as frontend-0")
    flags = parser.parse_args()
    # Heavy imports wait until the process is tied to its parent.
    from scheduler_svc.frontend.process import run_process  # noqa: PLC0415

    return run_process(flags.run_dir, flags.name)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # before the loop handles signals
        sys.exit(130)
