"""A frontend's services in this process, between a real gRPC channel and a scripted core."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
import zmq

from octavo.v1.inference_pb2_grpc import InferenceServiceStub
from scheduler_svc.config import ServiceConfig
from scheduler_svc.frontend.model import ServedModel
from scheduler_svc.frontend.services import FrontendServices
from scheduler_svc.frontend.span import CallTracer
from tests.fakes.byte_tokenizer import END_ID, write_byte_tokenizer
from tests.unit.frontend.scripted_core import WAIT_LIMIT_S, ScriptedCore

if TYPE_CHECKING:  # a name for type checkers only
    from octavo.v1.inference_pb2_grpc import InferenceServiceAsyncStub

MODEL = "tiny"
REPLICA = "replica-1"


@dataclass
class Service:
    """What a test holds."""

    core: ScriptedCore
    services: FrontendServices
    channel: grpc.aio.Channel
    stub: InferenceServiceAsyncStub
    address: str
    model: ServedModel

    def ids(self, text: str) -> list[int]:
        """The ids of a text: one for each of its bytes."""
        return self.model.tokenizer.encode(text)

    async def until(self, condition: Callable[[], object]) -> None:
        """Returns once it holds; a TimeoutError otherwise."""
        async with asyncio.timeout(WAIT_LIMIT_S):
            while not condition():  # noqa: ASYNC110 - what it waits for has no event
                await asyncio.sleep(0.01)


def write_model(folder: Path, **generation_config: object) -> None:
    """A model folder without weights: frontends need none."""
    write_byte_tokenizer(folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 288,
        "max_position_embeddings": 512,
        "hidden_size": 24,
        "eos_token_id": END_ID,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps(generation_config))


@asynccontextmanager
async def running_service(
    model: ServedModel,
    run_dir: Path,
    *,
    with_core: bool = True,
    tracer: CallTracer | None = None,
    **settings: object,
) -> AsyncIterator[Service]:
    """A service with settings of its own."""
    config = dataclasses.replace(
        ServiceConfig(replica=REPLICA, served_model_name=MODEL, core_restart_grace=5.0),
        **settings,  # type: ignore[arg-type]  # a test's own settings
    )
    with contextlib.closing(ScriptedCore(run_dir)) as core, zmq.Context() as context:
        if with_core:
            await core.start()
        services = FrontendServices(
            config,
            model,
            context=context,
            engine_endpoint=f"ipc://{run_dir}/engine.sock",
            name="frontend-0",
            incarnation=7,
            tracer=tracer,
        )
        address = await services.start("127.0.0.1:0")
        watching = asyncio.create_task(services.run())
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            service = Service(
                core, services, channel, InferenceServiceStub(channel), address, model
            )
            if with_core:
                await service.until(lambda: services.link.silence_s is not None)
            try:
                yield service
            finally:
                await services.stop()
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                await core.stop()
