"""The frontend as a process of its own: started, supervised, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio

from octavo.internal.v1 import control_pb2 as control
from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1.inference_pb2_grpc import InferenceServiceStub
from scheduler_svc.addresses import Addresses, write_addresses
from scheduler_svc.config import ServiceConfig, write_config
from scheduler_svc.control.hub import ChildRecord, ControlHub
from scheduler_svc.endpoints import Endpoints
from scheduler_svc.process import child_environment
from tests.unit.frontend.frontend_service import write_model
from tests.unit.frontend.scripted_core import ScriptedCore
from tests.unit.frontend.stream_reader import Reader, generation, refusal_of

START_LIMIT_S = 60.0
NAME = "frontend-0"


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(START_LIMIT_S):
        while not condition():  # noqa: ASYNC110 - another process has no event here
            await asyncio.sleep(0.02)


@dataclasses.dataclass
class Supervised:
    """A frontend process between a scripted core and a control hub."""

    process: asyncio.subprocess.Process
    hub: ControlHub
    core: ScriptedCore
    target: str

    @property
    def record(self) -> ChildRecord | None:
        return self.hub.record(NAME)

    def is_ready(self) -> bool:
        return self.record is not None and self.record.snapshot.is_ready

    async def order(self, message: control.ControlMessage) -> None:
        assert self.record is not None
        assert await self.hub.send(self.record, message)

    async def end(self) -> tuple[int, str]:
        """Exit status and what the process wrote."""
        async with asyncio.timeout(START_LIMIT_S):
            said, _ = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, said.decode()


def prepare(run_dir: Path) -> str:
    """A run folder as the supervisor leaves it; returns the address."""
    model_dir = run_dir / "model"
    model_dir.mkdir()
    write_model(model_dir)
    write_config(ServiceConfig(model=str(model_dir), served_model_name="tiny"), run_dir)
    target = f"unix:{run_dir}/grpc.sock"
    write_addresses(Addresses(inference=target, admin="", metrics=""), run_dir)
    return target


async def spawn(run_dir: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-m", "scheduler_svc.frontend"),
        *("--run-dir", str(run_dir), "--name", NAME),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=child_environment({"PYTHONPATH": ":".join(path for path in sys.path if path)}),
    )


@asynccontextmanager
async def supervised(run_dir: Path) -> AsyncIterator[Supervised]:
    target = prepare(run_dir)
    hub = ControlHub(Endpoints(run_dir).control, clock=time.monotonic)
    hub.bind()
    core = ScriptedCore(run_dir)
    await core.start()
    process = await spawn(run_dir)
    hearing = asyncio.create_task(_hear(hub))
    try:
        yield Supervised(process, hub, core, target)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
        await core.stop()
        core.close()
        hub.close()


async def _hear(hub: ControlHub) -> None:
    pinged_at = 0.0
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await hub.receive()
        if time.monotonic() - pinged_at > 0.2:
            pinged_at = time.monotonic()
            await hub.ping()


async def test_a_frontend_reports_serves_and_ends_fifty_streams_at_sigterm(run_dir: Path) -> None:
    async with supervised(run_dir) as frontend:
        await until(frontend.is_ready)
        async with grpc.aio.insecure_channel(frontend.target) as channel:
            stub = InferenceServiceStub(channel)
            readers = [Reader(stub, generation()) for _ in range(50)]
            for _ in readers:
                submit = await frontend.core.expect("submit")
                await frontend.core.accept(submit)
                await frontend.core.deliver(submit.number, [64])
            for reader in readers:
                assert await reader.read_one() is not None
            frontend.process.send_signal(signal.SIGTERM)
            refusals = [await refusal_of(reader) for reader in readers]
        status, said = await frontend.end()
    assert {refusal.code for refusal in refusals} == {grpc.StatusCode.UNAVAILABLE}
    assert {refusal.info.metadata["resumable"] for refusal in refusals} == {"true"}
    assert status == 0
    assert "serving tiny on unix:" in said
    calls = [line for line in said.splitlines() if "call ended method=Generate" in line]
    assert len(calls) == 50
    assert len(said.splitlines()) == 51, said


async def test_a_drained_frontend_lets_streams_end_and_says_so(run_dir: Path) -> None:
    async with supervised(run_dir) as frontend:
        await until(frontend.is_ready)
        async with grpc.aio.insecure_channel(frontend.target) as channel:
            stub = InferenceServiceStub(channel)
            reader = Reader(stub, generation())
            submit = await frontend.core.expect("submit")
            await frontend.core.accept(submit)
            drain = control.ControlMessage(drain=control.Drain(limit_ms=10_000))
            await frontend.order(drain)
            await until(lambda: not frontend.is_ready())
            assert frontend.record is not None
            assert not frontend.record.snapshot.is_drained
            refused = await refusal_of(Reader(stub, generation()))
            await frontend.core.deliver(submit.number, [64], end=engine.END_REASON_LENGTH)
            await reader.read_all()
            await until(lambda: frontend.record and frontend.record.snapshot.is_drained)
        shutdown = control.ControlMessage(shutdown=control.Shutdown(reason="the test is over"))
        await frontend.order(shutdown)
        status, said = await frontend.end()
    assert refused.code is grpc.StatusCode.UNAVAILABLE
    assert status == 0
    assert "Traceback" not in said


async def test_a_broken_tokenizer_is_named_and_not_tried_again(run_dir: Path) -> None:
    prepare(run_dir)
    (run_dir / "model" / "tokenizer.json").write_text("{")
    process = await spawn(run_dir)
    async with asyncio.timeout(START_LIMIT_S):
        said, _ = await process.communicate()
    assert process.returncode == 78
    [line] = said.decode().splitlines()
    assert "tokenizer.json" in line
    assert "is not a tokenizer" in line


async def test_a_taken_address_is_named(run_dir: Path) -> None:
    prepare(run_dir)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        target = f"127.0.0.1:{taken.getsockname()[1]}"
        write_addresses(Addresses(inference=target, admin="", metrics=""), run_dir)
        process = await spawn(run_dir)
        async with asyncio.timeout(START_LIMIT_S):
            said, _ = await process.communicate()
    assert process.returncode == 1
    assert f"cannot listen on {target}" in said.decode()
    assert "Traceback" not in said.decode()
