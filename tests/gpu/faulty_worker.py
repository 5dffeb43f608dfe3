"""`python -m tests.gpu.faulty_worker`: the real worker; its ranks do wrong when a file says so."""

import sys

from worker_svc.__main__ import supervise
from worker_svc.config import parse_flags
from worker_svc.process import die_with_parent

RANK_MODULE = "tests.gpu.faulty_rank"


def main() -> int:
    """Supervises the ranks; returns the exit status."""
    die_with_parent()
    config = parse_flags(sys.argv[1:], program="faulty_worker")
    return supervise(config, rank_command=(sys.executable, "-m", RANK_MODULE))


if __name__ == "__main__":
    sys.exit(main())
