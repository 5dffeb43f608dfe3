"""`python -m tests.fakes.hash_worker`: the worker supervisor with hash-token ranks.

Takes the worker's flags (`--model` may be left out), and those of `tests.fakes.hash_rank`.
"""

import argparse
import sys
from collections.abc import Sequence

from tests.fakes.hash_rank import add_hash_flags
from worker_svc.__main__ import supervise
from worker_svc.config import InvalidConfig, add_flags, config_of
from worker_svc.process import PERMANENT_EXIT, die_with_parent

RANK_COMMAND = (sys.executable, "-m", "tests.fakes.hash_rank")


def main(arguments: Sequence[str] | None = None) -> int:
    """Supervises hash-token ranks; returns the exit status."""
    die_with_parent()
    own = argparse.ArgumentParser(add_help=False)
    add_hash_flags(own)
    parser = argparse.ArgumentParser(prog="hash_worker", parents=[own])
    add_flags(parser)
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        config = config_of(parser.parse_args(given))
    except InvalidConfig as error:
        sys.stderr.write(f"hash_worker: {error}\n")
        return PERMANENT_EXIT
    known = own.parse_args([]).__dict__.keys()
    chosen = parser.parse_args(given)
    flags = [f"--{name.replace('_', '-')}={getattr(chosen, name)}" for name in known]
    return supervise(config, rank_command=[*RANK_COMMAND, *flags])


if __name__ == "__main__":
    sys.exit(main())
