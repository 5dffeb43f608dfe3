"""A frontend as a supervised process: its settings, its control link, its signals, its end."""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import signal
from pathlib import Path

import zmq

from octavo.internal.v1 import control_pb2 as control
from octavo.models.errors import ModelError
from octavo.models.resolve import resolve_model
from scheduler_svc.addresses import read_addresses
from scheduler_svc.config import InvalidConfig, ServiceConfig, read_config
from scheduler_svc.control.child import ControlChild
from scheduler_svc.control.child_protocol import Order, ShutdownOrder
from scheduler_svc.endpoints import Endpoints
from scheduler_svc.frontend.model import ServedModel, load_served_model
from scheduler_svc.frontend.server import CannotListen
from scheduler_svc.frontend.services import FrontendServices
from scheduler_svc.frontend.span import CallTracer
from scheduler_svc.frontend.text.errors import TextError
from scheduler_svc.log import configure_logging

PERMANENT_EXIT = 78
"""Exit status (sysexits' EX_CONFIG) of an error that no restart can mend."""
_LOG = logging.getLogger(__name__)


class FrontendProcess:
    """One process: load the model's text side, serve, stop when told."""

    def __init__(
        self,
        config: ServiceConfig,
        *,
        run_dir: Path,
        name: str,
        tracer: CallTracer | None = None,
    ) -> None:
        self._config = config
        self._tracer = tracer
        self._run_dir = run_dir
        self._name = name
        self._incarnation = secrets.randbits(64)
        self._services: FrontendServices | None = None
        self._stopped = asyncio.Event()
        self._drains = False

    async def run(self) -> int:
        """Serves until a signal or an order; returns the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stopped.set)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        control_link = ControlChild(
            context,
            Endpoints(self._run_dir).control,
            role="frontend",
            name=self._name,
            make_snapshot=self._snapshot,
            incarnation=self._incarnation,
        )
        control_link.connect()
        answering = asyncio.create_task(control_link.run(self._obey))
        try:
            return await self._serve(context, answering)
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            control_link.close()
            context.term()

    async def _serve(
        self, context: zmq.Context[zmq.Socket[bytes]], answering: asyncio.Task[None]
    ) -> int:
        model = await asyncio.to_thread(self._load_model)
        gc.freeze()  # the vocabulary lives for ever; no collection needs to look at it
        services = FrontendServices(
            self._config,
            model,
            context=context,
            engine_endpoint=Endpoints(self._run_dir).engine,
            name=self._name,
            incarnation=self._incarnation,
            tracer=self._tracer,
        )
        watching: asyncio.Task[None] | None = None
        try:
            address = await services.start(inference_target(self._config, self._run_dir))
            self._services = services
            if self._drains:
                services.drain()
            _LOG.info("serving %s on %s", model.name, address)
            watching = asyncio.create_task(services.run())
            stopping = asyncio.create_task(self._stopped.wait())
            done, _ = await asyncio.wait(
                (watching, answering, stopping), return_when=asyncio.FIRST_COMPLETED
            )
            stopping.cancel()
            for task in done:
                task.result()  # raises what ended it
        finally:
            await services.stop()
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        return 0

    def _load_model(self) -> ServedModel:
        folder = resolve_model(self._config.model)
        return load_served_model(folder.path, name=self._config.served_model_name or folder.name)

    def _snapshot(self) -> control.Snapshot:
        if self._services is None:
            return control.Snapshot(not_ready_reason=f"{self._name} reads the tokenizer")
        return self._services.snapshot()

    def _obey(self, order: Order) -> None:
        if isinstance(order, ShutdownOrder):
            _LOG.info("stopping: %s", order.reason)
            self._stopped.set()
        elif not self._drains:
            self._drains = True
            if self._services is not None:
                self._services.drain()


def inference_target(config: ServiceConfig, run_dir: Path) -> str:
    """Where to listen: what the supervisor reserved, else what the settings say."""
    try:
        return read_addresses(run_dir).inference
    except FileNotFoundError:
        pass
    if config.unix_socket:
        return f"unix:{Path(config.unix_socket).absolute()}"
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{host}:{config.port}"


def run_process(run_dir: Path, name: str) -> int:
    """Runs a frontend to its end; 0 when told to stop, 78 when no restart can help, else 1."""
    try:
        config = read_config(run_dir)
        configure_logging(role=name, level=config.log_level, form=config.log_format)
        if config.tracing:
            return _run_traced(config, run_dir, name)
        return asyncio.run(_run(config, run_dir, name))
    except (InvalidConfig, ModelError, TextError) as error:
        _LOG.error("%s cannot run: %s", name, error)
        return PERMANENT_EXIT
    except (CannotListen, OSError) as error:
        _LOG.error("%s cannot run: %s", name, error)
        return 1


def _run_traced(config: ServiceConfig, run_dir: Path, name: str) -> int:
    # an optional package, and who does not trace shall not load it
    from scheduler_svc.tracing.exporter import close_tracer, make_tracer  # noqa: PLC0415

    tracer = make_tracer(replica=config.replica, process=name)
    try:
        return asyncio.run(_run(config, run_dir, name, tracer))
    finally:
        close_tracer(tracer)


async def _run(
    config: ServiceConfig, run_dir: Path, name: str, tracer: CallTracer | None = None
) -> int:
    return await FrontendProcess(config, run_dir=run_dir, name=name, tracer=tracer).run()
