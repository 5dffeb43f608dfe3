"""One rank group on its way into an epoch: who said Hello, whether they agree. Knows no socket.

A group is named by its incarnation; its ranks keep their process ids and change their identities.
"""

from dataclasses import dataclass

from octavo.internal.v1 import step_pb2 as step
from scheduler_svc.core.limits import WorkerLimits

PROTOCOL_VERSION = 1

# what all ranks of a group must say alike
_AGREED = ("model_digest", "block_size", "vocab_size")
_POSITIVE = (
    *("group_incarnation", "world_size", "block_size", "max_num_seqs"),
    *("max_num_batched_tokens", "vocab_size"),
)


@dataclass(slots=True)
class Seat:
    """A rank's latest Hello."""

    identity: bytes
    hello: step.Hello
    is_waiting: bool = True  # said Hello since the group last left an epoch


def hello_problem(hello: step.Hello) -> str | None:
    """Why a Hello cannot be taken, whatever the other ranks say."""
    if hello.protocol_version != PROTOCOL_VERSION:
        return (
            f"rank {hello.rank} speaks version {hello.protocol_version} of the step protocol, "
            f"the core version {PROTOCOL_VERSION}: install the same release on both sides"
        )
    for name in _POSITIVE:
        if not getattr(hello, name):
            return f"rank {hello.rank}: Hello.{name} must not be 0"
    if hello.rank >= hello.world_size:
        return f"Hello.rank must be below world_size, got {hello.rank} of {hello.world_size}"
    for name in ("num_blocks", "max_model_len"):
        if getattr(hello, name) < 2:
            return f"rank {hello.rank}: Hello.{name} must be at least 2"
    return None


class RankGroup:
    """The ranks of one start of the workers. Deadlines are seconds on the caller's clock."""

    def __init__(self, incarnation: int, *, deadline: float) -> None:
        self.incarnation = incarnation
        self.deadline = deadline
        self.seats: dict[int, Seat] = {}

    @property
    def world_size(self) -> int:
        """Ranks expected, as the first Hello said."""
        return next(iter(self.seats.values())).hello.world_size if self.seats else 1

    @property
    def identities(self) -> list[bytes]:
        """Where the ranks are reached, rank 0 first."""
        return [self.seats[rank].identity for rank in sorted(self.seats)]

    @property
    def is_complete(self) -> bool:
        """Whether every rank waits for an epoch."""
        waiting = [rank for rank, seat in self.seats.items() if seat.is_waiting]
        return len(waiting) == self.world_size

    def refusal(self, hello: step.Hello) -> str | None:
        """Why this Hello cannot belong to the group, whatever else it says."""
        if self.seats and hello.world_size != self.world_size:
            return f"a rank of {hello.world_size} came to a group of {self.world_size}"
        seat = self.seats.get(hello.rank)
        if seat is None or seat.hello.pid == hello.pid:
            return None
        return (
            f"two processes, {seat.hello.pid} and {hello.pid}, say that they are rank {hello.rank}"
        )

    def take(self, identity: bytes, hello: step.Hello) -> None:
        """Seats a rank, or notes its new Hello and identity."""
        self.seats[hello.rank] = Seat(identity, hello)

    def leave_epoch(self, deadline: float) -> None:
        """All ranks are to say Hello again."""
        self.deadline = deadline
        for seat in self.seats.values():
            seat.is_waiting = False

    def rank_of(self, identity: bytes) -> int | None:
        """The rank that speaks with this identity."""
        for rank, seat in self.seats.items():
            if seat.identity == identity:
                return rank
        return None

    def disagreement(self) -> str | None:
        """What the ranks of a complete group say differently though they must not."""
        first = self.seats[min(self.seats)].hello
        for rank, seat in sorted(self.seats.items()):
            for name in _AGREED:
                mine, theirs = getattr(first, name), getattr(seat.hello, name)
                if mine != theirs:
                    shown = (v.hex() if isinstance(v, bytes) else v for v in (mine, theirs))
                    return "ranks {} and {} differ in {}: {} and {}".format(
                        first.rank, rank, name, *shown
                    )
        return None

    def out_of_step(self) -> str | None:
        """How the last steps launched differ; the ranks' collectives would not match any more."""
        if self.world_size == 1:
            return None
        last = {
            rank: (
                seat.hello.last_epoch.core_incarnation,
                seat.hello.last_epoch.counter,
                seat.hello.last_step,
            )
            for rank, seat in sorted(self.seats.items())
        }
        if len(set(last.values())) == 1:
            return None
        told = ", ".join(f"rank {rank} epoch {e} step {s}" for rank, (_, e, s) in last.items())
        return f"the ranks launched different last steps: {told}"

    def limits(self) -> WorkerLimits:
        """What every rank can take."""
        hellos = [seat.hello for seat in self.seats.values()]
        return WorkerLimits(
            num_blocks=min(hello.num_blocks for hello in hellos),
            block_size=hellos[0].block_size,
            max_num_seqs=min(hello.max_num_seqs for hello in hellos),
            max_num_batched_tokens=min(hello.max_num_batched_tokens for hello in hellos),
            max_model_len=min(hello.max_model_len for hello in hellos),
            vocab_size=hellos[0].vocab_size,
        )
