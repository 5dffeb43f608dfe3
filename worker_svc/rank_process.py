"""One rank as a process: settings, signals, sockets, last words. Knows no model."""

import argparse
import logging
import os
import signal
from pathlib import Path

import zmq

from worker_svc.channel import RankChannel
from worker_svc.channel_events import Introduction
from worker_svc.config import InvalidConfig, WorkerConfig, add_flags, config_of
from worker_svc.dealer import Dealer
from worker_svc.log import configure_logging
from worker_svc.models.errors import ModelError
from worker_svc.process import PERMANENT_EXIT, SignalInbox
from worker_svc.rank_loop import RankLoop
from worker_svc.rank_model import LoadModel, ModelFacts
from worker_svc.rank_start import RankStart, add_start_flags, start_of

_LOGGER = logging.getLogger(__name__)


def rank_parser(program: str) -> argparse.ArgumentParser:
    """The command line of a rank: what it is told at its start, and the worker's settings."""
    parser = argparse.ArgumentParser(prog=program)
    add_start_flags(parser)
    add_flags(parser)
    return parser


def run_rank(arguments: argparse.Namespace, *, load: LoadModel) -> int:
    """Loads the model and serves the core to the end; returns the exit status.

    0 after a Shutdown or SIGTERM, 78 for what no restart can mend, else 1; the reason of a failure
    stands in the error file.
    """
    # the supervisor ends this process; Ctrl-C is its business
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start = start_of(arguments)
    try:
        config = config_of(arguments)
        configure_logging(
            process=f"rank-{start.rank}", level=config.log_level, form=config.log_format
        )
        _serve(start, config, load=load)
    except (InvalidConfig, ModelError) as error:
        _leave_word(start.error_file, str(error))
        _LOGGER.error("%s", error)
        return PERMANENT_EXIT
    except Exception as error:
        _leave_word(start.error_file, f"{type(error).__name__}: {error}")
        _LOGGER.exception("rank %d ends", start.rank)
        return 1
    return 0


def _serve(start: RankStart, config: WorkerConfig, *, load: LoadModel) -> None:
    model = load(start, config)
    signals = SignalInbox()
    signals.catch([signal.SIGTERM])
    with zmq.Context() as context:
        dealer = Dealer(
            context,
            f"ipc://{Path(config.run_dir).absolute()}/steps.sock",
            name=f"rank-{start.rank}",
            wake_fd=signals.fd,
        )
        channel = RankChannel(dealer, _introduction(start, config, model.facts))
        RankLoop(channel=channel, model=model, stop_requested=lambda: bool(signals.take())).run()


def _introduction(start: RankStart, config: WorkerConfig, facts: ModelFacts) -> Introduction:
    return Introduction(
        group_incarnation=start.group_incarnation,
        rank=start.rank,
        world_size=config.tensor_parallel_size,
        model_digest=facts.digest,
        model_type=facts.model_type,
        block_size=config.block_size,
        num_blocks=facts.num_blocks,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=facts.max_model_len,
        vocab_size=facts.vocab_size,
        pid=os.getpid(),
    )


def _leave_word(path: Path, message: str) -> None:
    try:
        path.write_text(" ".join(message.split()), encoding="utf-8")
    except OSError as error:
        _LOGGER.warning("cannot write %s: %s", path, error.strerror)
