"""`python -m worker_svc`: the worker supervisor with ranks of a real model."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import zmq

from worker_svc.config import InvalidConfig, WorkerConfig, parse_flags
from worker_svc.core_link import CoreLink
from worker_svc.dealer import Dealer
from worker_svc.group_keeper import GroupKeeper
from worker_svc.log import configure_logging
from worker_svc.process import PERMANENT_EXIT, SignalInbox, die_with_parent
from worker_svc.rank_folder import RankFolder
from worker_svc.supervisor import RankSupervisor

RANK_COMMAND = (sys.executable, "-m", "worker_svc.rank")


def main(arguments: Sequence[str] | None = None) -> int:
    """Supervises real ranks; returns the exit status."""
    die_with_parent()
    try:
        config = parse_flags(sys.argv[1:] if arguments is None else arguments, program="worker_svc")
        if not config.model:
            raise InvalidConfig("--model is missing: name the folder of the model")
    except InvalidConfig as error:
        sys.stderr.write(f"worker_svc: {error}\n")
        return PERMANENT_EXIT
    return supervise(config, rank_command=RANK_COMMAND)


def supervise(config: WorkerConfig, *, rank_command: Sequence[str]) -> int:
    """Runs ranks with this command until the end; returns the exit status. Main thread only.

    The command gets the flags of a `RankStart` and of the settings.
    """
    signals = SignalInbox()
    signals.catch([signal.SIGTERM, signal.SIGINT, signal.SIGCHLD])
    configure_logging(process="workers", level=config.log_level, form=config.log_format)
    folder = RankFolder.create()
    try:
        with zmq.Context() as context:
            dealer = Dealer(
                context,
                f"ipc://{Path(config.run_dir).absolute()}/workers.sock",
                name="workers",
                wake_fd=signals.fd,
            )
            return RankSupervisor(
                keeper=GroupKeeper(config, rank_command=rank_command, folder=folder),
                link=CoreLink(dealer),
                signals=signals,
            ).run()
    finally:
        folder.remove()


if __name__ == "__main__":
    sys.exit(main())
