"""The core's link to the supervisor of the workers: pings, the state of the rank group, orders to
kill it.

Knows nothing of epochs. At most one worker supervisor is listened to: the one that said Hello last.
"""

import logging
from collections.abc import Mapping

from google.protobuf.message import DecodeError

from octavo.internal.v1 import control_pb2 as control
from scheduler_svc.engine.router import Sender, Sent
from scheduler_svc.seldom_log import SeldomLog

_LOG = logging.getLogger(__name__)


class GroupLink:
    """A state machine over an injected sender; `tick` is due every half second."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._garbage = SeldomLog(
            _LOG, "dropped %d messages on the workers' socket that are no ChildMessage"
        )
        self._identity: bytes | None = None
        self._num_pings = 0
        self._state = control.GroupState()

    @property
    def state(self) -> control.GroupState:
        """The latest word on the rank group; empty before the first."""
        return self._state

    @property
    def permanent_error(self) -> str:
        """Why starting the workers again makes no sense; empty if it does."""
        return self._state.permanent_error

    def receive(self, identity: bytes, payload: bytes) -> control.GroupState | None:
        """Takes one message; returns the group's state when it brings one."""
        try:
            message = control.ChildMessage.FromString(payload)
        except DecodeError:
            self._garbage.note()
            return None
        kind = message.WhichOneof("kind")
        if kind == "hello":
            self._identity = identity
            _LOG.info("worker supervisor, process %d, says Hello", message.hello.pid)
        elif kind == "group_state" and identity == self._identity:
            self._note_change(message.group_state)
            self._state = message.group_state
            return self._state
        return None

    def tick(self, kill_orders: Mapping[int, str]) -> None:
        """Pings the supervisor and repeats the orders to kill."""
        self._num_pings += 1
        self._send(control.ControlMessage(ping=control.Ping(number=self._num_pings)))
        for incarnation, reason in kill_orders.items():
            order = control.KillGroup(group_incarnation=incarnation, reason=reason)
            self._send(control.ControlMessage(kill_group=order))

    def _send(self, message: control.ControlMessage) -> None:
        if self._identity is None:
            return
        if self._sender.send(self._identity, message.SerializeToString()) is Sent.GONE:
            _LOG.warning("the worker supervisor is gone")
            self._identity = None

    def _note_change(self, state: control.GroupState) -> None:
        if state.permanent_error and state.permanent_error != self._state.permanent_error:
            _LOG.error("workers cannot run: %s", state.permanent_error)
        elif state.num_restarts > self._state.num_restarts:
            _LOG.warning("workers were started again: %s", state.last_death or "cause unknown")
