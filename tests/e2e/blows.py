"""What can befall a replica: any process killed or stopped, any socket cut, all of it lost.

A blow is chosen by a random number generator, so that a seed says it all. Judges nothing.
"""

import asyncio
import contextlib
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from tests.e2e.cut_sockets import cut_ipc, cut_tcp
from tests.e2e.replica import Replica, wait_until

_FOUND_LIMIT_S = 20.0
FRONTENDS = ("frontend-0", "frontend-1")
SUPERVISORS = ("workers", "supervisor")
# who accepted the connections on it
SOCKETS = {
    "steps.sock": "core",
    "engine.sock": "core",
    "workers.sock": "core",
    "control.sock": "supervisor",
}
PROCESSES = (("rank",), ("core",), FRONTENDS, ("workers",), ("supervisor",))
KINDS = (
    *(("kill", victims) for victims in PROCESSES),
    *(("stop", victims) for victims in PROCESSES),
    *(("cut", (name,)) for name in SOCKETS),
    ("cut", FRONTENDS),
    ("lose", ("replica",)),
)
"""What is done, and to whom: one of these."""
_SHORT_S = (0.1, 0.7, 1.7, 2.6)


@dataclass(frozen=True, kw_only=True)
class Blow:
    """One blow: what is done to whom, and how long it lasts (None: until somebody ends it)."""

    deed: str  # kill, stop, cut or lose
    victim: str
    lasts_s: float | None = None

    def __str__(self) -> str:
        lasts = f" for {self.lasts_s} s" if self.deed == "stop" and self.lasts_s else ""
        return f"{self.deed} {self.victim}{lasts}"


def blow_of_round(seed: int, number: int) -> Blow:
    """Each kind comes once in as many rounds as there are kinds, shuffled anew each time."""
    deck, place = divmod(number, len(KINDS))
    deed, victims = random.Random(f"{seed} {deck}").sample(KINDS, len(KINDS))[place]
    draw = random.Random(f"{seed} {number}")
    victim = draw.choice(victims)
    if deed == "stop":
        # nobody ends a stopped supervisor but us
        lasts_s = draw.choice(_SHORT_S if victim in SUPERVISORS else (*_SHORT_S, None))
        return Blow(deed=deed, victim=victim, lasts_s=lasts_s)
    return Blow(deed=deed, victim=victim, lasts_s=2 * draw.random())


async def strike(replica: Replica, blow: Blow) -> None:
    """Does it, and starts again what nobody else would."""
    deeds: dict[str, Callable[[Replica, Blow], None]] = {
        "kill": _kill,
        "stop": _stop,
        "cut": _cut,
        "lose": _lose,
    }
    await asyncio.to_thread(deeds[blow.deed], replica, blow)
    if blow.lasts_s is None or blow.deed == "cut":
        return
    if blow.deed == "stop":
        await asyncio.sleep(blow.lasts_s)
        for process in replica.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
    elif blow.victim in ("replica", *SUPERVISORS):
        await asyncio.sleep(blow.lasts_s)
        await asyncio.to_thread(replica.start_again)


def find(replica: Replica, victim: str) -> psutil.Process:
    """A process by its role, once there is one."""
    found: list[psutil.Process] = []

    def look() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess, AssertionError):
            found[:] = [_find_now(replica, victim)]
        return bool(found)

    wait_until(look, limit_s=_FOUND_LIMIT_S, otherwise=lambda: f"no {victim}\n{replica.log()}")
    return found[0]


def _find_now(replica: Replica, victim: str) -> psutil.Process:
    if victim == "supervisor":
        return psutil.Process(replica.supervisor.pid)
    if victim == "workers":
        own = replica.workers  # of its own, or the supervisor's child
        return replica.process("worker_svc") if own is None else psutil.Process(own.pid)
    if victim == "rank":
        ranks = _find_now(replica, "workers").children(recursive=True)
        assert len(ranks) == 1, ranks
        return ranks[0]
    return replica.process("scheduler_svc.engine" if victim == "core" else victim)


def _kill(replica: Replica, blow: Blow) -> None:
    find(replica, blow.victim).kill()
    _bury(replica, blow.victim)


def _stop(replica: Replica, blow: Blow) -> None:
    find(replica, blow.victim).suspend()


def _cut(replica: Replica, blow: Blow) -> None:
    if blow.victim in SOCKETS:
        cut_ipc(find(replica, SOCKETS[blow.victim]), blow.victim)
    else:
        cut_tcp(find(replica, blow.victim), int(replica.target.rpartition(":")[2]))


def _lose(replica: Replica, blow: Blow) -> None:
    for process in replica.processes():  # the supervisor first, so that none comes back
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    for victim in SUPERVISORS:
        _bury(replica, victim)


def _bury(replica: Replica, victim: str) -> None:
    if victim == "supervisor":
        replica.supervisor.wait()
    elif victim == "workers" and replica.workers is not None:
        replica.workers.wait()
