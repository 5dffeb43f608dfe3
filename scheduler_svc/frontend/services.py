"""Builds what one frontend serves with, in one place, and starts and stops it.

Knows nothing of how the process is supervised.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc.aio
import zmq

from octavo.internal.v1 import control_pb2 as control
from octavo.v1 import inference_pb2 as api
from scheduler_svc.config import ServiceConfig
from scheduler_svc.frontend.answers import Answers
from scheduler_svc.frontend.batches import Batches
from scheduler_svc.frontend.callers import Callers
from scheduler_svc.frontend.calls import Calls
from scheduler_svc.frontend.core_outage import CoreOutage
from scheduler_svc.frontend.engine_link import EngineLink
from scheduler_svc.frontend.errors import Unavailable
from scheduler_svc.frontend.estimates import Estimates
from scheduler_svc.frontend.generations import Generations
from scheduler_svc.frontend.health import HealthServicer
from scheduler_svc.frontend.ledger import RequestLedger
from scheduler_svc.frontend.limits import RequestLimits, request_limits
from scheduler_svc.frontend.model import ServedModel
from scheduler_svc.frontend.model_info import model_info
from scheduler_svc.frontend.parse import RequestParser
from scheduler_svc.frontend.patience import CorePatience
from scheduler_svc.frontend.probes import Probes
from scheduler_svc.frontend.prompt import PromptEncoder
from scheduler_svc.frontend.server import listen, make_server
from scheduler_svc.frontend.servicer import InferenceServicer
from scheduler_svc.frontend.serving import Serving
from scheduler_svc.frontend.span import CallTracer
from scheduler_svc.frontend.tenant_labels import TenantLabels
from scheduler_svc.frontend.texts import Texts
from scheduler_svc.frontend.traffic import Traffic
from scheduler_svc.frontend.vectors import Vectors
from scheduler_svc.security.guard import KeyGuard
from scheduler_svc.security.keys import key_ring
from scheduler_svc.security.ports import inference_tls
from scheduler_svc.security.tls import server_credentials

_HEALTH_TICK_S = 0.25
_ENCODER_THREADS = 2
# Together less than what the supervisor gives a child to end.
_STREAMS_END_LIMIT_S = 1.0
_STOP_GRACE_S = 0.5


class FrontendServices:
    """All objects of one frontend. Made inside a running loop."""

    def __init__(
        self,
        config: ServiceConfig,
        model: ServedModel,
        *,
        context: zmq.Context[zmq.Socket[bytes]],
        engine_endpoint: str,
        name: str,
        incarnation: int,
        clock: Callable[[], float] = time.monotonic,
        tracer: CallTracer | None = None,
    ) -> None:
        self._config = config
        self._model = model
        self._keys = key_ring(flag="--api-keys-file", path=config.api_keys_file)
        self._credentials = server_credentials(inference_tls(config))
        self._executor = ThreadPoolExecutor(_ENCODER_THREADS, thread_name_prefix="encoder")
        self.traffic = Traffic(TenantLabels(self._keys))
        self.ledger = RequestLedger(clock=clock, max_closed_tokens=config.max_retained_tokens)
        self.link = EngineLink(
            context,
            engine_endpoint,
            name=name,
            incarnation=incarnation,
            ledger=self.ledger,
            patience=CorePatience(
                self.ledger, restart_grace_s=config.core_restart_grace, clock=clock
            ),
            outage=CoreOutage(self.traffic.recovered),
            clock=clock,
        )
        self.serving = Serving(self.link, withdrawal_window_s=config.withdrawal_window, clock=clock)
        self.calls = Calls(self.traffic, clock=clock, tracer=tracer)
        self.health = HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._servicer = self._make_servicer(clock)

    async def start(self, target: str) -> str:
        """Connects to the core and listens; returns the address. Raises CannotListen."""
        self.link.open()
        self._server = make_server(
            self._servicer,
            self.health,
            config=self._config,
            guard=self._guard(),
        )
        address = listen(self._server, target, credentials=self._credentials)
        await self._server.start()
        return address

    async def run(self) -> None:
        """Watches the core and keeps health up to date, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.link.run())
            tasks.create_task(self._follow_health())

    def drain(self) -> None:
        """Not serving from now on; what runs goes on."""
        self.serving.drain()
        self._update_health()

    async def stop(self) -> None:
        """Ends quickly: streams end UNAVAILABLE, their requests wait for another frontend."""
        self.serving.stop()
        self.health.close()
        leaving = Unavailable("this frontend stops", reason="STOPPING")
        for record in [*self.ledger.unanswered(), *self.ledger.live()]:
            self.ledger.fail(record, leaving)
        await self.calls.wait_for_end(_STREAMS_END_LIMIT_S)
        self.link.close()
        if self._server is not None:
            await self._server.stop(_STOP_GRACE_S)
            # the server does not wait for what its handlers do when they are cancelled
            await self.calls.wait_for_end(_STOP_GRACE_S)
        self._executor.shutdown(wait=False, cancel_futures=True)

    def snapshot(self) -> control.Snapshot:
        """What the supervisor is told once a second."""
        reason = self.serving.not_serving_reason()
        return control.Snapshot(
            readings=self.traffic.render(),
            is_ready=not reason,
            not_ready_reason=reason,
            is_drained=self.serving.refuses_new and not self.calls.num_open,
        )

    def _make_servicer(self, clock: Callable[[], float]) -> InferenceServicer:
        config, model = self._config, self._model
        prompts = PromptEncoder(model, executor=self._executor)
        answers = Answers(
            self.ledger,
            replica=config.replica,
            traffic=self.traffic,
            slow_reader_limit_s=config.slow_reader_limit,
            clock=clock,
        )
        probes = Probes(self.ledger, traffic=self.traffic, clock=clock)
        return InferenceServicer(
            parser=RequestParser(model, prompts, limits=self._limits),
            generations=Generations(
                model, self.ledger, replica=config.replica, traffic=self.traffic, clock=clock
            ),
            answers=answers,
            batches=Batches(answers, self.calls, clock=clock),
            texts=Texts(model, prompts, limits=self._limits, executor=self._executor),
            estimates=Estimates(prompts, self.ledger, limits=self._limits),
            vectors=Vectors(model, prompts, probes, limits=self._limits),
            calls=self.calls,
            callers=Callers(self._keys),
            serving=self.serving,
            ledger=self.ledger,
            describe=self._describe,
            clock=clock,
        )

    def _guard(self) -> KeyGuard | None:
        if self._keys is None:
            return None
        return KeyGuard(self._keys, on_denial=self.traffic.denied)

    def _limits(self) -> RequestLimits:
        return request_limits(
            self._config,
            self._model,
            max_sequence_tokens=self.link.status.max_sequence_tokens,
        )

    def _describe(self) -> api.GetModelInfoResponse:
        return model_info(self._model, self._limits(), replica=self._config.replica)

    async def _follow_health(self) -> None:
        while True:
            self._update_health()
            await asyncio.sleep(_HEALTH_TICK_S)

    def _update_health(self) -> None:
        self.health.set_serving(is_serving=not self.serving.not_serving_reason())
