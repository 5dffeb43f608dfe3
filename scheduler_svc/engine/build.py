"""Builds the core's object graph from the settings. The only place that knows all parts."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from scheduler_svc.config import ServiceConfig
from scheduler_svc.control.child import ControlChild
from scheduler_svc.core.core import Core
from scheduler_svc.core.limits import Policy
from scheduler_svc.endpoints import Endpoints
from scheduler_svc.engine.core_readings import CoreReadings
from scheduler_svc.engine.delivery import Delivery
from scheduler_svc.engine.desk import Desk
from scheduler_svc.engine.frontend_link import FrontendLink
from scheduler_svc.engine.grammar.grammars import build_grammars
from scheduler_svc.engine.group_link import GroupLink
from scheduler_svc.engine.holding import Holding
from scheduler_svc.engine.intake import Intake
from scheduler_svc.engine.loop import Loop, Parts, Sockets
from scheduler_svc.engine.pacing import Pacer
from scheduler_svc.engine.report import Report
from scheduler_svc.engine.router import Router
from scheduler_svc.engine.steps import Steps
from scheduler_svc.engine.worker_link import EpochSettings, WorkerLink

# plans are few and beats are small; a frontend that lags is better served by one merged message
_MAX_UNSENT_TO_RANKS = 1000
_MAX_UNSENT_TO_FRONTENDS = 64
# far above the largest that our own processes send
_MAX_BYTES_FROM_WORKERS = 64 * 2**20
_MAX_BYTES_FROM_FRONTENDS = 512 * 2**20
# of the step deadline's floor; what takes longer announces itself (Busy)
_HANDSHAKE_FACTOR = 6.0
_PATIENCE_FACTOR = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What is decided once, when the process starts."""

    core_incarnation: int
    num_tokenizer_ids: int | None
    now: float


def build_loop(
    config: ServiceConfig,
    endpoints: Endpoints,
    *,
    context: zmq.Context[zmq.Socket[bytes]],
    num_tokenizer_ids: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Loop:
    """All parts, wired and connected. Raises CannotBind."""
    start = Start(
        core_incarnation=secrets.randbits(64) or 1,
        num_tokenizer_ids=num_tokenizer_ids,
        now=clock(),
    )
    sockets = Sockets(
        steps=Router(
            context,
            endpoints.steps,
            max_unsent=_MAX_UNSENT_TO_RANKS,
            max_bytes=_MAX_BYTES_FROM_WORKERS,
        ),
        workers=Router(
            context,
            endpoints.workers,
            max_unsent=_MAX_UNSENT_TO_RANKS,
            max_bytes=_MAX_BYTES_FROM_WORKERS,
        ),
        engine=Router(
            context,
            endpoints.engine,
            max_unsent=_MAX_UNSENT_TO_FRONTENDS,
            max_bytes=_MAX_BYTES_FROM_FRONTENDS,
        ),
    )
    loop = Loop(build_parts(config, sockets, start), sockets, clock=clock)
    control_child = ControlChild(
        context,
        endpoints.control,
        role="core",
        name="core",
        make_snapshot=loop.snapshot,
        incarnation=start.core_incarnation,
        clock=clock,
    )
    loop.connect(control_child)
    return loop


def build_parts(config: ServiceConfig, sockets: Sockets, start: Start) -> Parts:
    """The loop's parts."""
    core = Core(policy_from(config), cache_root=secrets.token_bytes(16))
    readings = CoreReadings()
    workers = WorkerLink(sockets.steps, _epoch_settings(config, start))
    pacer = Pacer(deadline_floor_s=config.step_deadline_floor)
    grammars = build_grammars(config, readings)
    steps = Steps(core, workers, pacer, readings, start.now, grammars=grammars)
    link = FrontendLink(sockets.engine)
    delivery = Delivery(link, core, note_starts=readings.note_starts)
    expected = [f"frontend-{index}" for index in range(config.frontends)]
    holding = Holding(expected_frontends=expected, now=start.now)
    intake = Intake(
        core,
        owners=link,
        delivery=delivery,
        holding=holding,
        rejections=readings.rejections,
        workers_grace_s=config.core_restart_grace,
        grammars=grammars,
    )
    desk = Desk(core, link, intake=intake, delivery=delivery, holding=holding)
    group = GroupLink(sockets.workers)
    report = Report(
        core,
        steps=steps,
        workers=workers,
        group=group,
        desk=desk,
        readings=readings,
        core_incarnation=start.core_incarnation,
        patience_s=_PATIENCE_FACTOR * config.step_deadline_floor,
    )
    return Parts(
        core=core,
        steps=steps,
        workers=workers,
        group=group,
        desk=desk,
        intake=intake,
        holding=holding,
        report=report,
        grammars=grammars,
    )


def policy_from(config: ServiceConfig) -> Policy:
    """The core's policy that follows from the settings."""
    return Policy(
        max_steps_in_flight=config.max_steps_in_flight,
        use_prefix_cache=not config.no_prefix_cache,
        max_prefill_chunk_tokens=config.max_prefill_chunk_tokens,
        target_token_time_s=config.target_token_time_ms / 1000,
        max_step_stretch=config.max_step_stretch,
        max_queue_requests=config.max_queue_requests,
        max_queue_tokens=config.max_queue_tokens,
        max_queue_s=config.max_queue_time,
        max_outputs=config.max_outputs,
        orphan_grace_s=config.orphan_grace,
        max_keep_for_s=config.max_keep_for,
        max_retained_tokens=config.max_retained_tokens,
    )


def _epoch_settings(config: ServiceConfig, start: Start) -> EpochSettings:
    return EpochSettings(
        core_incarnation=start.core_incarnation,
        max_steps_in_flight=config.max_steps_in_flight,
        num_tokenizer_ids=start.num_tokenizer_ids,
        handshake_limit_s=_HANDSHAKE_FACTOR * config.step_deadline_floor,
    )
