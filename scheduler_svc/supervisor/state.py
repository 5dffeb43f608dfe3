"""What the supervisor last saw, for the admin service and the HTTP threads to read."""

from dataclasses import dataclass, field

from octavo.internal.v1 import control_pb2 as control
from scheduler_svc.control.hub import ChildRecord
from scheduler_svc.metrics.recent import Recent
from scheduler_svc.supervisor.readiness import Readiness


@dataclass(slots=True)
class ReplicaState:
    """Written by the supervisor's loop only; members are replaced, never changed in place."""

    readiness: Readiness = field(
        default_factory=lambda: Readiness(is_ready=False, reason="starting")
    )
    is_draining: bool = False
    records: tuple[ChildRecord, ...] = ()
    group: control.GroupState | None = None
    looked_at: float = 0.0
    recent: Recent = field(default_factory=Recent)
