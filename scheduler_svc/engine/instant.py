"""One moment on the two clocks of the engine. Reads neither."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Instant:
    """Requests live by the real clock, peers are judged by the patient one."""

    now: float
    patient: float
