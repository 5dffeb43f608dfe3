"""The worker supervisor's line to the core, `workers.sock`. Knows no process and no rank."""

import os
import secrets

from google.protobuf.message import DecodeError

from octavo.internal.v1 import control_pb2
from worker_svc.dealer import Dealer

ROLE = "worker-supervisor"


class CoreLink:
    """Presents this process, answers Pings, passes on orders. `connect` before use."""

    def __init__(self, dealer: Dealer) -> None:
        self._dealer = dealer
        self._incarnation = secrets.randbits(64) | 1

    def connect(self) -> None:
        """Opens a fresh socket that greets the core as soon as it is there."""
        hello = control_pb2.ChildHello(
            role=ROLE, name=ROLE, pid=os.getpid(), incarnation=self._incarnation
        )
        self._dealer.open(control_pb2.ChildMessage(hello=hello).SerializeToString())

    def receive(self, timeout_s: float) -> control_pb2.ControlMessage | None:
        """The next order, or None when none came in time or there was something else to do."""
        payload = self._dealer.receive(timeout_s)
        if payload is None:
            if self._dealer.is_silent():
                self.connect()
            return None
        try:
            message = control_pb2.ControlMessage.FromString(payload)
        except DecodeError:
            self.connect()
            return None
        if message.WhichOneof("kind") == "ping":
            pong = control_pb2.Pong(number=message.ping.number)
            self._dealer.send(control_pb2.ChildMessage(pong=pong).SerializeToString())
            return None
        return message

    def tell(self, state: control_pb2.GroupState) -> None:
        """Sends the group's state, if the core is there."""
        self._dealer.send(control_pb2.ChildMessage(group_state=state).SerializeToString())

    def close(self) -> None:
        """Closes the socket; what was just said still leaves."""
        self._dealer.close(linger_s=0.5)
