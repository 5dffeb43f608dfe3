"""The worker supervisor's loop: signals, the core's orders, the group's state. Knows no process."""

import logging
import signal
import time

from octavo.internal.v1 import control_pb2
from worker_svc.core_link import CoreLink
from worker_svc.group_keeper import GroupKeeper
from worker_svc.process import PERMANENT_EXIT, SignalInbox

_LOGGER = logging.getLogger(__name__)

_STATE_INTERVAL_S = 1.0
# how long a permanent error is told to the core before this process ends with it
_GIVE_UP_AFTER_S = 10.0


class RankSupervisor:
    """Keeps ranks running until a signal, a Shutdown or a permanent error."""

    def __init__(self, *, keeper: GroupKeeper, link: CoreLink, signals: SignalInbox) -> None:
        self._keeper = keeper
        self._link = link
        self._signals = signals
        self._told: tuple[object, ...] = ()
        self._tell_due_at = 0.0
        self._give_up_at: float | None = None
        self._is_stopping = False

    def run(self) -> int:
        """Supervises to the end; returns the exit status. No rank is left then."""
        self._link.connect()
        try:
            while not self._is_over():
                order = self._link.receive(self._wait_s())
                if order is not None:
                    self._obey(order)
                if any(number != signal.SIGCHLD for number in self._signals.take()):
                    self._stop("signal")
                self._keeper.tick(self._now())
                self._tell()
        finally:
            self._keeper.abandon()
            self._link.close()
        return PERMANENT_EXIT if self._keeper.permanent_error else 0

    def _is_over(self) -> bool:
        if not self._keeper.is_over:
            return False
        if self._is_stopping:
            return True
        if self._give_up_at is None:
            self._give_up_at = self._now() + _GIVE_UP_AFTER_S
        return self._now() >= self._give_up_at

    def _obey(self, order: control_pb2.ControlMessage) -> None:
        match order.WhichOneof("kind"):
            case "kill_group":
                kill = order.kill_group
                _LOGGER.warning("the core asks to kill the group: %s", kill.reason)
                self._keeper.kill(kill.group_incarnation, kill.reason)
            case "shutdown":
                self._stop(f"the core: {order.shutdown.reason}")

    def _stop(self, reason: str) -> None:
        _LOGGER.info("stopping: %s", reason)
        self._is_stopping = True
        self._keeper.stop(self._now())

    def _tell(self) -> None:
        """Sends the state when it changed, and each second."""
        now = self._now()
        state = self._keeper.state(now)
        # what is left of a back-off changes all the time and is no news
        news = (state.group_incarnation, *state.pids, state.num_restarts, state.last_death)
        news = (*news, state.permanent_error)
        if news != self._told or now >= self._tell_due_at:
            self._link.tell(state)
            self._told, self._tell_due_at = news, now + _STATE_INTERVAL_S

    def _wait_s(self) -> float:
        """Until something is due; signals and messages end the wait earlier."""
        due = [self._tell_due_at]
        due += [at for at in (self._keeper.due_at(), self._give_up_at) if at is not None]
        return max(0.0, min(due) - self._now())

    def _now(self) -> float:
        return time.monotonic()
