"""The core's process: reads the run folder's settings and turns the loop until a signal or an
order.
"""

import argparse
import gc
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import zmq

from scheduler_svc.config import InvalidConfig, read_config
from scheduler_svc.endpoints import Endpoints
from scheduler_svc.engine.build import build_loop
from scheduler_svc.engine.loop import Loop
from scheduler_svc.engine.router import CannotBind
from scheduler_svc.engine.tokenizer_size import UnreadableTokenizer, count_tokenizer_ids
from scheduler_svc.log import configure_logging

_LOG = logging.getLogger(__name__)

# sysexits' EX_CONFIG: the supervisor does not start it again
PERMANENT_EXIT = 78


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the core; 0 when it was told to stop, 78 when its settings cannot work."""
    parser = argparse.ArgumentParser(prog="python -m scheduler_svc.engine")
    parser.add_argument("--run-dir", type=Path, required=True, help="the replica's run folder")
    run_dir: Path = parser.parse_args(arguments).run_dir
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        config = read_config(run_dir)
        configure_logging(role="core", level=config.log_level, form=config.log_format)
        sys.excepthook = _log_crash
        num_ids = count_tokenizer_ids(Path(config.model))
        loop = build_loop(config, Endpoints(run_dir), context=context, num_tokenizer_ids=num_ids)
        _run(loop)
    except (InvalidConfig, CannotBind, UnreadableTokenizer) as error:
        sys.stderr.write(f"core: {error}\n")
        return PERMANENT_EXIT
    finally:
        context.destroy(linger=0)
    return 0


def _run(loop: Loop) -> None:
    received, wakes = socket.socketpair()
    with received, wakes:
        _listen_to_signals(loop, wakes)
        loop.poller.register(received, zmq.POLLIN)
        settle_memory()
        num_epochs = 0
        while not loop.is_stopping:
            loop.turn()
            if loop.parts.steps.num_epochs_begun != num_epochs:
                num_epochs = loop.parts.steps.num_epochs_begun
                settle_memory()
        signal.set_wakeup_fd(-1)


def settle_memory() -> None:
    """Keeps what lives now out of collections to come, and drops what no longer does.

    An epoch's columns of a million blocks would be looked through again and again, in the middle of
    some step, for a tenth of a second. Requests that live now are kept out as well, and once they
    have ended they stay until the next call.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _listen_to_signals(loop: Loop, wakes: socket.socket) -> None:
    def stop(number: int, _frame: object) -> None:
        _LOG.info("stopping: %s", signal.Signals(number).name)
        loop.is_stopping = True

    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def _log_crash(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    _LOG.critical("the core failed", exc_info=(kind, error, traceback))
