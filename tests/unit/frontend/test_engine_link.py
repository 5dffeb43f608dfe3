"""The link hears every message at once, whenever it comes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import cast

import pytest
import zmq

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.frontend.connection import EngineConnection
from scheduler_svc.frontend.core_outage import CoreOutage
from scheduler_svc.frontend.engine_link import EngineLink
from scheduler_svc.frontend.ledger import RequestLedger
from scheduler_svc.frontend.patience import CorePatience

LIMIT_S = 60.0


class Listener:
    """A ledger and its patience: notes deliveries, ignores the rest."""

    def __init__(self) -> None:
        self.delivered = asyncio.Event()
        self.greeted = asyncio.Event()

    def connected(self, connection: EngineConnection, *, core_incarnation: int) -> None:
        self.greeted.set()

    def deliver(self, deliver: engine.Deliver) -> None:
        self.delivered.set()

    def disconnected(self) -> None: ...

    def core_lost(self) -> None: ...

    def core_found(self) -> None: ...


class Core:
    """The other end of engine.sock."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._socket = context.socket(zmq.ROUTER)
        self._socket.bind(endpoint)
        self._identity = b""
        self._num_sent = 0

    def hear_hello(self) -> bool:
        try:
            self._identity, _ = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def say(self, message: engine.CoreToFrontend) -> None:
        self._num_sent += 1
        message.message_number = self._num_sent
        self._socket.send_multipart([self._identity, message.SerializeToString()])

    def close(self) -> None:
        self._socket.close(linger=0)


async def _greet(core: Core) -> None:
    while not core.hear_hello():  # noqa: ASYNC110 - a socket without an event loop
        await asyncio.sleep(0.01)
    core.say(engine.CoreToFrontend(status=engine.CoreStatus(core_incarnation=1)))


async def test_a_message_that_comes_while_the_link_looks_at_its_socket_is_heard_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a look at the socket's state takes the signal of its descriptor, which then stays silent
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    core = Core(context, f"ipc://{tmp_path}/engine.sock")
    listener = Listener()
    link = EngineLink(
        context,
        f"ipc://{tmp_path}/engine.sock",
        name="frontend-0",
        incarnation=1,
        ledger=cast(RequestLedger, listener),
        patience=cast(CorePatience, listener),
        outage=CoreOutage(lambda *_: None),
    )
    look = vars(EngineConnection)["is_writable"].fget
    is_armed = False

    def look_late(connection: EngineConnection) -> bool:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            core.say(engine.CoreToFrontend(deliver=engine.Deliver()))
            time.sleep(0.1)  # until it is there
        return bool(look(connection))

    link.open()
    try:
        async with asyncio.timeout(LIMIT_S):
            await _greet(core)
            await listener.greeted.wait()
            await asyncio.sleep(0.1)
            monkeypatch.setattr(EngineConnection, "is_writable", property(look_late))
            # the answer to this would wake the link once more
            monkeypatch.setattr(EngineConnection, "send_beat", lambda _: None)
            is_armed = True
            core.say(engine.CoreToFrontend(status=engine.CoreStatus(core_incarnation=1)))
            await listener.delivered.wait()
        assert listener.delivered.is_set()
    finally:
        link.close()
        core.close()
        context.term()
