"""Keeps this frontend connected to the core, whichever process that is, and passes messages on.

A DEALER driven by the event loop. A connection is given up when nothing came for 1.5 s, a message
was lost or the core is gone; a fresh one says Hello, and once the core has answered, the ledger
settles what is open. Knows nothing of what requests are about.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import zmq

from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.control.silence import PatientClock
from scheduler_svc.frontend.connection import ConnectionBroken, EngineConnection
from scheduler_svc.frontend.core_outage import CoreOutage
from scheduler_svc.frontend.ledger import RequestLedger
from scheduler_svc.frontend.output_record import TokensMissing
from scheduler_svc.frontend.patience import CorePatience

PROTOCOL_VERSION = 1
SILENCE_LIMIT_S = 1.5
_TICK_S = 0.25
# Streams get their turn between batches of messages.
_MAX_MESSAGES_AT_ONCE = 32
_LOG = logging.getLogger(__name__)


class EngineLink:
    """The link of one process: `open`, then `run` until cancelled, then `close`."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        *,
        name: str,
        incarnation: int,
        ledger: RequestLedger,
        patience: CorePatience,
        outage: CoreOutage,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._endpoint = endpoint
        self._hello = engine.FrontendHello(
            protocol_version=PROTOCOL_VERSION, name=name, incarnation=incarnation
        )
        self._ledger = ledger
        self._patience = patience
        self._outage = outage
        self._clock = clock
        self._patient_clock = PatientClock(clock)
        self._connection: EngineConnection | None = None
        self._descriptor = -1
        self._is_greeted = False
        self._is_pump_due = False
        self._heard_at = 0.0
        self.status = engine.CoreStatus()
        """What the core last said of itself."""
        self._spoke_at: float | None = None

    def open(self) -> None:
        """Begins to connect."""
        self._patience.core_lost()
        self._connect()

    def close(self) -> None:
        """Leaves without a word: requests become orphans that another frontend may take."""
        self._disconnect()

    async def run(self) -> None:
        """Watches the connection; messages are passed on without it."""
        while True:
            await asyncio.sleep(_TICK_S)
            self.tick()

    def tick(self) -> None:
        """Looks around: reads what is there, replaces a silent connection, drops what is over."""
        self._pump()
        now = self._patient_clock()
        if now - self._heard_at > SILENCE_LIMIT_S:
            self._reconnect(f"nothing from the core for {SILENCE_LIMIT_S} s")
        self._ledger.forget_closed()
        self._patience.end_what_waits_too_long()

    @property
    def silence_s(self) -> float | None:
        """Seconds since a core last said anything; None before it ever did."""
        return None if self._spoke_at is None else self._patient_clock() - self._spoke_at

    # --- the connection ---

    def _connect(self) -> None:
        self._is_greeted = False
        self._heard_at = self._patient_clock()
        self._connection = EngineConnection(
            self._context, self._endpoint, after_send=self._pump_soon
        )
        self._descriptor = self._connection.open()
        asyncio.get_running_loop().add_reader(self._descriptor, self._pump)
        self._connection.send(engine.FrontendToCore(hello=self._hello))

    def _disconnect(self) -> None:
        if self._connection is None:
            return
        self._ledger.disconnected()
        asyncio.get_running_loop().remove_reader(self._descriptor)
        self._connection.close()
        self._connection = None

    def _reconnect(self, why: str) -> None:
        # while no core is there every attempt ends like this: worth one line
        level = logging.WARNING if self._is_greeted else logging.DEBUG
        _LOG.log(level, "connecting to the core again: %s", why)
        if self._is_greeted:
            self._patience.core_lost()
            self._outage.lost(self._clock(), self._ledger.live())
        self._disconnect()
        self._connect()

    def _pump_soon(self) -> None:
        if not self._is_pump_due:
            self._is_pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Sends what waits and passes on what came."""
        self._is_pump_due = False
        if self._connection is None:
            return
        try:
            self._connection.flush()
            is_empty = self._receive_some(self._connection)
        except (ConnectionBroken, TokensMissing, ValueError, IndexError) as error:
            self._reconnect(str(error) or type(error).__name__)
            return
        is_writable = self._connection.is_writable
        if not is_empty or self._connection.is_readable:
            self._pump_soon()
        elif self._is_greeted and not is_writable:
            self._reconnect("the core is gone")

    def _receive_some(self, connection: EngineConnection) -> bool:
        """Passes messages on; returns whether that were all."""
        for _ in range(_MAX_MESSAGES_AT_ONCE):
            message = connection.receive()
            if message is None:
                return True
            self._heard_at = self._spoke_at = self._patient_clock()
            self._pass_on(message, connection)
            if message.deliver.tokens:
                self._outage.moved(self._clock())
        return False

    # --- messages ---

    def _pass_on(self, message: engine.CoreToFrontend, connection: EngineConnection) -> None:
        kind = message.WhichOneof("kind")
        if kind == "status":
            self._note_status(message.status, connection)
        elif not self._is_greeted:
            raise ConnectionBroken("the core spoke before it answered the Hello")
        elif kind == "deliver":
            self._ledger.deliver(message.deliver)
        elif kind == "accepted":
            self._ledger.accepted(message.accepted)
        elif kind == "attached":
            self._ledger.attached(message.attached)
        elif kind == "rejected":
            self._ledger.rejected(message.rejected)
        elif kind == "superseded":
            self._ledger.superseded(message.superseded)
        elif kind == "cancel_answer":
            self._ledger.cancel_answered(message.cancel_answer)
        elif kind == "estimate_answer":
            self._ledger.estimate_answered(message.estimate_answer)

    def _note_status(self, status: engine.CoreStatus, connection: EngineConnection) -> None:
        if self._is_greeted and status.core_incarnation != self.status.core_incarnation:
            raise ConnectionBroken("another core answers")
        self.status = engine.CoreStatus()
        self.status.CopyFrom(status)
        self._outage.told(self._clock(), computes=status.is_accepting)
        connection.send_beat()
        if not self._is_greeted:
            self._is_greeted = True
            self._patience.core_found()
            self._ledger.connected(connection, core_incarnation=status.core_incarnation)
