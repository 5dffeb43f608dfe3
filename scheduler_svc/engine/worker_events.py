"""What the engine learns from its workers, in order. Knows nothing of how."""

from dataclasses import dataclass

from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.plan import StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBegun:
    """All ranks are ready; plans may follow, numbered from 1."""

    limits: WorkerLimits
    model_digest: bytes
    world_size: int
    named_at: float  # when the workers' supervisor first named the group
    welcomed_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnded:
    """The epoch is over; its steps in flight never answer."""

    cause: str  # of a fixed set, for metrics
    was_fatal: bool  # a rank died or hung


@dataclass(frozen=True, slots=True)
class StepDone:
    """The next result, in order."""

    result: StepResult


WorkerEvent = EpochBegun | EpochEnded | StepDone
