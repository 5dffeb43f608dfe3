"""The core's process: builds everything from the run folder's settings and turns the loop until a
signal.

The only place that knows all parts.
"""

import argparse
import gc
import logging
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import zmq

from scheduler_svc.config import InvalidConfig, ServiceConfig, read_config
from scheduler_svc.control.child import ControlChild
from scheduler_svc.core.core import Core
from scheduler_svc.core.limits import Policy
from scheduler_svc.endpoints import Endpoints
from scheduler_svc.engine.core_readings import CoreReadings
from scheduler_svc.engine.delivery import Delivery
from scheduler_svc.engine.desk import Desk
from scheduler_svc.engine.frontend_link import FrontendLink
from scheduler_svc.engine.group_link import GroupLink
from scheduler_svc.engine.holding import Holding
from scheduler_svc.engine.intake import Intake
from scheduler_svc.engine.loop import Loop, Parts, Sockets
from scheduler_svc.engine.pacing import Pacer
from scheduler_svc.engine.router import Router
from scheduler_svc.engine.steps import Steps
from scheduler_svc.engine.tokenizer_size import count_tokenizer_ids
from scheduler_svc.engine.worker_link import EpochSettings, WorkerLink
from scheduler_svc.log import configure_logging

_LOG = logging.getLogger(__name__)

# sysexits' EX_CONFIG: the supervisor does not start it again
PERMANENT_EXIT = 78

# plans are few and beats are small, but a frontend that lags is better served by one merged message
_MAX_UNSENT_TO_RANKS = 1000
_MAX_UNSENT_TO_FRONTENDS = 64
# handshakes wait for loads and captures that announce themselves (Busy) only when long
_HANDSHAKE_FACTOR = 6.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the core; 0 after a signal or an order to stop, 78 when its settings cannot work."""
    parser = argparse.ArgumentParser(prog="python -m scheduler_svc.engine")
    parser.add_argument("--run-dir", type=Path, required=True, help="the replica's run folder")
    run_dir: Path = parser.parse_args(arguments).run_dir
    try:
        config = read_config(run_dir)
        configure_logging(role="core", level=config.log_level, form=config.log_format)
        num_tokenizer_ids = count_tokenizer_ids(Path(config.model))
    except (InvalidConfig, ValueError) as error:
        sys.stderr.write(f"core: {error}\n")
        return PERMANENT_EXIT
    with zmq.Context() as context:
        loop = build_loop(
            config, Endpoints(run_dir), context=context, num_tokenizer_ids=num_tokenizer_ids
        )
        try:
            _run(loop)
        finally:
            loop.close()
    return 0


def build_loop(
    config: ServiceConfig,
    endpoints: Endpoints,
    *,
    context: zmq.Context[zmq.Socket[bytes]],
    num_tokenizer_ids: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Loop:
    """All parts, wired and connected. Raises zmq.ZMQError when a socket cannot be bound."""
    now = clock()
    core_incarnation = secrets.randbits(64) or 1
    core = Core(policy_from(config), cache_root=secrets.token_bytes(16))
    readings = CoreReadings()
    sockets = Sockets(
        steps=Router(context, endpoints.steps, max_unsent=_MAX_UNSENT_TO_RANKS),
        workers=Router(context, endpoints.workers, max_unsent=_MAX_UNSENT_TO_RANKS),
        engine=Router(context, endpoints.engine, max_unsent=_MAX_UNSENT_TO_FRONTENDS),
    )
    epoch_settings = EpochSettings(
        core_incarnation=core_incarnation,
        max_steps_in_flight=config.max_steps_in_flight,
        num_tokenizer_ids=num_tokenizer_ids,
        handshake_limit_s=_HANDSHAKE_FACTOR * config.step_deadline_floor,
    )
    workers = WorkerLink(sockets.steps, epoch_settings)
    link = FrontendLink(sockets.engine)
    delivery = Delivery(link, core)
    expected = [f"frontend-{index}" for index in range(config.frontends)]
    holding = Holding(expected_frontends=expected, now=now)
    intake = Intake(
        core,
        owners=link,
        delivery=delivery,
        holding=holding,
        rejections=readings.rejections,
        workers_grace_s=config.core_restart_grace,
    )
    pacer = Pacer(deadline_floor_s=config.step_deadline_floor)
    parts = Parts(
        core=core,
        steps=Steps(core, workers, pacer, readings, now),
        workers=workers,
        group=GroupLink(sockets.workers),
        desk=Desk(core, link, intake=intake, delivery=delivery, holding=holding, readings=readings),
        intake=intake,
        holding=holding,
        readings=readings,
    )
    loop = Loop(
        parts,
        sockets,
        core_incarnation=core_incarnation,
        patience_s=config.step_deadline_floor / 2,
        clock=clock,
    )
    control_child = ControlChild(
        context,
        endpoints.control,
        role="core",
        name="core",
        make_snapshot=loop.snapshot,
        incarnation=core_incarnation,
        clock=clock,
    )
    loop.connect(control_child)
    return loop


def policy_from(config: ServiceConfig) -> Policy:
    """The core's policy that follows from the settings."""
    return Policy(
        max_steps_in_flight=config.max_steps_in_flight,
        use_prefix_cache=not config.no_prefix_cache,
        max_prefill_chunk_tokens=config.max_prefill_chunk_tokens,
        target_token_time_s=config.target_token_time_ms / 1000,
        max_queue_requests=config.max_queue_requests,
        max_queue_tokens=config.max_queue_tokens,
        max_outputs=config.max_outputs,
        orphan_grace_s=config.orphan_grace,
        max_keep_for_s=config.max_keep_for,
        max_retained_tokens=config.max_retained_tokens,
    )


def _run(loop: Loop) -> None:
    received, wakes = socket.socketpair()
    with received, wakes:
        _listen_to_signals(loop, wakes)
        loop.poller.register(received, zmq.POLLIN)
        gc.collect()
        gc.freeze()  # what lives from here on is not looked through again and again
        while not loop.is_stopping:
            loop.turn()
        signal.set_wakeup_fd(-1)


def _listen_to_signals(loop: Loop, wakes: socket.socket) -> None:
    def stop(number: int, _frame: object) -> None:
        _LOG.info("stopping: %s", signal.Signals(number).name)
        loop.is_stopping = True

    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
