"""`python -m scheduler_svc.engine --run-dir DIR`: the core's process."""

import sys

from scheduler_svc.process import die_with_parent

die_with_parent()  # before the imports below take their time

from scheduler_svc.engine.process import main  # noqa: E402 - see above

if __name__ == "__main__":
    sys.exit(main())
