"""The real loop in a thread, over sockets in a temporary folder."""

import secrets
import socket
import threading
from pathlib import Path

import zmq

from octavo.internal.v1 import control_pb2 as control
from scheduler_svc.config import ServiceConfig
from scheduler_svc.endpoints import Endpoints
from scheduler_svc.engine.build import build_loop


class RunningEngine:
    """`start`, then `stop`; a stopped one may be followed by another on the same folder."""

    def __init__(self, run_dir: Path, **settings: object) -> None:
        defaults: dict[str, object] = {"step_deadline_floor": 1.0, "log_level": "debug"}
        self._config = ServiceConfig(**{**defaults, **settings})  # type: ignore[arg-type]
        self.endpoints = Endpoints(run_dir)
        self._is_stopped = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.loop = build_loop(self._config, self.endpoints, context=self._context)
        self._woken, self._wakes = socket.socketpair()
        self.loop.poller.register(self._woken, zmq.POLLIN)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> "RunningEngine":
        """Begins to turn."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends it, as if it had been killed: nobody is told."""
        if self._is_stopped.is_set():
            return
        self._is_stopped.set()
        self._wakes.send(b"!")
        self._thread.join(timeout=10)
        assert not self._thread.is_alive()
        self.loop.close()
        self._woken.close()
        self._wakes.close()
        self._context.term()

    @property
    def is_stopping(self) -> bool:
        """Whether the loop was told to stop."""
        return self.loop.is_stopping

    def _run(self) -> None:
        while not self._is_stopped.is_set() and not self.loop.is_stopping:
            self.loop.turn()


class ScriptedSupervisor:
    """Both supervisors the core talks to: its own, and that of the workers."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoints: Endpoints, group: int
    ) -> None:
        self.control = context.socket(zmq.ROUTER)
        self.workers = context.socket(zmq.DEALER)
        self.control.setsockopt(zmq.LINGER, 0)
        self.workers.setsockopt(zmq.LINGER, 0)
        self.control.bind(endpoints.control)
        self.workers.setsockopt(zmq.IDENTITY, b"w" + secrets.token_bytes(8))
        self.workers.connect(endpoints.workers)
        self.state = control.GroupState(group_incarnation=group, pids=[1])
        self.core_identity = b""
        self.snapshots: list[control.Snapshot] = []
        self.group_states: list[control.GroupState] = []
        self.answers: list[control.ChildMessage] = []
        self.kill_orders: list[int] = []
        self.num_worker_pings = 0
        hello = control.ChildHello(role="worker-supervisor", name="workers", pid=1, incarnation=1)
        self._tell_core(control.ChildMessage(hello=hello))
        self.tell_state()

    def tell_state(self) -> None:
        """Sends the group's state to the core."""
        self._tell_core(control.ChildMessage(group_state=self.state))

    def order(self, message: control.ControlMessage) -> None:
        """Tells the core something."""
        self.control.send_multipart([self.core_identity, message.SerializeToString()])

    def pump(self) -> None:
        """Reads what is there, and shows both that their supervisor lives."""
        if self.core_identity:
            self.order(control.ControlMessage(ping=control.Ping(number=1)))
        self.tell_state()
        while self.control.poll(0):
            self.core_identity, payload = self.control.recv_multipart()
            message = control.ChildMessage.FromString(payload)
            kind = message.WhichOneof("kind")
            if kind == "snapshot":
                self.snapshots.append(message.snapshot)
            elif kind == "group_state":
                self.group_states.append(message.group_state)
            elif kind in {"request_list", "cache_flushed"}:
                self.answers.append(message)
        while self.workers.poll(0):
            order = control.ControlMessage.FromString(self.workers.recv())
            if order.WhichOneof("kind") == "kill_group":
                self.kill_orders.append(order.kill_group.group_incarnation)
            elif order.WhichOneof("kind") == "ping":
                self.num_worker_pings += 1

    def knows_core(self) -> bool:
        """Whether the core has said Hello."""
        self.pump()
        return bool(self.core_identity)

    def close(self) -> None:
        """Vanishes."""
        self.control.close()
        self.workers.close()

    def _tell_core(self, message: control.ChildMessage) -> None:
        self.workers.send(message.SerializeToString())
