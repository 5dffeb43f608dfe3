"""Keeps a replica's processes alive and tells the world how they are. Knows no request."""

import asyncio
import logging
import signal
import time

from octavo.internal.v1 import control_pb2 as control
from scheduler_svc.config import ServiceConfig
from scheduler_svc.control.hub import ChildRecord, ControlHub
from scheduler_svc.metrics.exporter import SnapshotStore
from scheduler_svc.metrics.recent import RecentTraffic
from scheduler_svc.supervisor.child import Child
from scheduler_svc.supervisor.readiness import judge_readiness
from scheduler_svc.supervisor.state import ReplicaState

_LOG = logging.getLogger(__name__)
_TICK_S = 0.5
# a child that says nothing for this long is killed: the kernel would keep giving it connections
_SILENCE_LIMIT_S = 5.0
# from spawn to Hello: interpreters start slowly on a busy machine
_HELLO_LIMIT_S = 60.0
# what a stopped child gets to end by itself
_STOP_LIMIT_S = 3.0


class Supervisor:
    """Runs until a signal, a finished drain or an error that no restart can mend."""

    def __init__(
        self,
        config: ServiceConfig,
        *,
        hub: ControlHub,
        children: list[Child],
        state: ReplicaState,
        store: SnapshotStore,
    ) -> None:
        self._config = config
        self._hub = hub
        self._children = children
        self._state = state
        self._store = store
        self._recent = RecentTraffic(store)
        self._wake = asyncio.Event()
        self._drain_ends_at: float | None = None
        self._core_drains_at = 0.0
        self._is_stopping = False
        self._failure = ""

    async def run(self) -> int:
        """Supervises until the end; returns the exit status."""
        self._listen_to_signals()
        receiver = asyncio.create_task(self._receive())
        try:
            for child in self._children:
                child.start(self._now())
            while not self._is_over():
                await self._tick()
                await self._sleep()
        finally:
            receiver.cancel()
            await self._stop_children()
        if self._failure:
            _LOG.error("stopped: %s", self._failure)
            return 1
        _LOG.info("stopped")
        return 0

    def drain(self, limit_s: float | None = None) -> None:
        """Begins a drain: not ready at once, then refuse new work, finish, stop."""
        if self._state.is_draining:
            return
        limit = self._config.drain_limit if limit_s is None else limit_s
        self._core_drains_at = self._now() + self._config.withdrawal_window
        self._drain_ends_at = self._core_drains_at + limit
        self._state.is_draining = True
        _LOG.info("draining, for at most %.0f s", self._config.withdrawal_window + limit)
        self._wake.set()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal)
        loop.add_signal_handler(signal.SIGCHLD, self._wake.set)

    def _on_stop_signal(self) -> None:
        if self._state.is_draining:
            _LOG.info("second signal: stopping now")
            self._is_stopping = True
        self.drain()
        self._wake.set()

    async def _receive(self) -> None:
        while True:
            newcomer = await self._hub.receive()
            if newcomer is not None and self._state.is_draining:
                await self._send_drain(newcomer)
            core = self._hub.record("core")
            self._state.group = core.group_state if core is not None else None

    async def _tick(self) -> None:
        now = self._now()
        for child in self._children:
            if child.watch(now):
                self._hub.forget(child.name)
            self._kill_if_silent(child, now)
        self._failure = self._failure or self._permanent_error()
        await self._hub.ping()
        if self._state.is_draining:
            for record in self._hub.records():
                await self._send_drain(record)
        self._publish(now)

    def _kill_if_silent(self, child: Child, now: float) -> None:
        if child.role == "worker":
            return  # it answers to the core alone
        record = self._hub.record(child.name)
        if record is None or record.pid != child.pid:
            silent_s, limit_s = now - child.started_at, _HELLO_LIMIT_S
        else:
            silent_s, limit_s = record.silent_for_s(now), _SILENCE_LIMIT_S
        if child.process is not None and silent_s > limit_s:
            child.kill(f"no answer for {silent_s:.1f} s")

    def _permanent_error(self) -> str:
        for child in self._children:
            if child.permanent_error:
                return child.permanent_error
        group = self._state.group
        return group.permanent_error if group is not None else ""

    async def _send_drain(self, record: ChildRecord) -> None:
        assert self._drain_ends_at is not None
        now = self._now()
        if record.role == "core" and now < self._core_drains_at:
            return  # frontends still pass on what the withdrawal window lets in
        remaining_ms = max(0, int(1000 * (self._drain_ends_at - now)))
        await self._hub.send(
            record, control.ControlMessage(drain=control.Drain(limit_ms=remaining_ms))
        )

    def _publish(self, now: float) -> None:
        records = tuple(self._hub.records())
        for record in records:
            self._store.put(record.name, record.incarnation, record.snapshot)
        self._state.recent = self._recent.read(now)
        before = self._state.readiness
        self._state.records, self._state.looked_at = records, now
        self._state.readiness = judge_readiness(
            records,
            is_draining=self._state.is_draining,
            stall_limit_s=self._config.step_deadline_floor,
            now=now,
        )
        if self._state.readiness != before:
            verb = "ready" if self._state.readiness.is_ready else "not ready"
            reason = self._state.readiness.reason
            _LOG.info("%s%s", verb, f": {reason}" if reason else "")

    def _is_over(self) -> bool:
        return self._is_stopping or bool(self._failure) or self._is_drained()

    def _is_drained(self) -> bool:
        if self._drain_ends_at is None:
            return False
        now = self._now()
        # the core ends what is left at the limit; frontends get a moment to pass that on
        if now > self._drain_ends_at + _STOP_LIMIT_S:
            return True
        records = self._hub.records()
        return now >= self._core_drains_at and all(r.snapshot.is_drained for r in records)

    async def _sleep(self) -> None:
        try:
            await asyncio.wait_for(self._wake.wait(), _TICK_S)
        except TimeoutError:
            return
        self._wake.clear()

    async def _stop_children(self) -> None:
        # frontends first: their streams end while the core still answers
        for role in ("frontend", "core", "worker"):
            group = [child for child in self._children if child.role == role]
            for child in group:
                child.stop()
            await self._wait_for_end(group)
        for child in self._children:
            child.end()

    async def _wait_for_end(self, group: list[Child]) -> None:
        limit = self._now() + _STOP_LIMIT_S
        while any(child.is_running() for child in group) and self._now() < limit:
            await self._sleep()  # a child's end wakes it

    def _now(self) -> float:
        return time.monotonic()
