"""Rank groups outside an epoch: who has said Hello, who must be killed, who may not come in.

Knows nothing of what happens in epochs.
"""

import logging

from octavo.internal.v1 import control_pb2 as control
from octavo.internal.v1 import step_pb2 as step
from scheduler_svc.engine.rank_group import RankGroup, hello_problem
from scheduler_svc.engine.router import Sender, Sent

_LOG = logging.getLogger(__name__)


class Gathering:
    """Groups by incarnation; the first complete one whose ranks agree leaves for an epoch."""

    def __init__(self, sender: Sender, *, limit_s: float) -> None:
        self._sender = sender
        self._limit_s = limit_s
        self._groups: dict[int, RankGroup] = {}
        self._killed: dict[int, str] = {}
        self._problem = ""

    @property
    def kill_orders(self) -> dict[int, str]:
        """Groups to be killed, with the reason, until their supervisor names another one."""
        return dict(self._killed)

    @property
    def condition(self) -> str:
        """Why no group is complete, in words."""
        if self._problem:
            return self._problem
        present = max((len(group.seats) for group in self._groups.values()), default=0)
        return f"waiting for workers ({present} present)" if present else "waiting for workers"

    def is_killed(self, incarnation: int) -> bool:
        """Whether a group is to be killed: nothing that its ranks say counts."""
        return incarnation in self._killed

    def take(self, identity: bytes, hello: step.Hello, now: float) -> RankGroup | None:
        """Seats a rank; returns its group, which leaves, when this makes it complete."""
        incarnation = hello.group_incarnation
        group = self._groups.get(incarnation)
        if group is None:
            group = RankGroup(incarnation, deadline=now + self._limit_s)
        problem = hello_problem(hello) or group.refusal(hello)
        if problem is not None:
            self.refuse([identity], problem)
            return None
        self._groups[incarnation] = group
        group.take(identity, hello)
        _LOG.info("rank %d/%d: %s", hello.rank, hello.world_size, hello.reason or "Hello")
        return self._completed(group) if group.is_complete else None

    def bring_back(self, group: RankGroup, now: float) -> None:
        """A group that left an epoch is to say Hello again."""
        group.leave_epoch(now + self._limit_s)
        if group.seats:
            self._groups[group.incarnation] = group

    def clear(self) -> None:
        """Forgets who is here: another group runs, or none."""
        self._groups.clear()
        self._problem = ""

    def order_kill(self, group: RankGroup, reason: str) -> None:
        """Has a group killed."""
        _LOG.warning("killing the rank group: %s", reason)
        self._groups.pop(group.incarnation, None)
        self._killed[group.incarnation] = reason

    def refuse(self, identities: list[bytes], problem: str) -> None:
        """Sends ranks away that cannot take part."""
        _LOG.error("%s", problem)
        self._problem = problem
        order = step.CoreToRank(shutdown=control.Shutdown(reason=problem)).SerializeToString()
        for identity in identities:
            self._sender.send(identity, order)

    def note_running(self, incarnation: int) -> None:
        """The workers' supervisor names the group that runs, 0 for none: all others are gone."""
        self._killed = {
            killed: why for killed, why in self._killed.items() if killed == incarnation
        }
        self._groups = {name: group for name, group in self._groups.items() if name == incarnation}

    def tick(self, beat: bytes, *, busy_until: float, now: float) -> None:
        """Sends the life sign, drops ranks that are gone, and kills groups that take too long."""
        for group in list(self._groups.values()):
            for rank, seat in list(group.seats.items()):
                if self._sender.send(seat.identity, beat) is Sent.GONE:
                    del group.seats[rank]
            if not group.seats:
                del self._groups[group.incarnation]
            elif now >= max(group.deadline, busy_until):
                self.order_kill(group, "not all ranks said Hello in time")

    def _completed(self, group: RankGroup) -> RankGroup | None:
        disagreement = group.disagreement()
        if disagreement is not None:
            del self._groups[group.incarnation]
            self.refuse(group.identities, disagreement)
            return None
        out_of_step = group.out_of_step()
        if out_of_step is not None:
            self.order_kill(group, out_of_step)
            return None
        self.clear()
        return group
