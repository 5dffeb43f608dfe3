"""What time passes outside the GPU. Knows no step.

Seen by a client, a gRPC frontend adds to the first token what it takes to parse and tokenize;
nothing of that is simulated: times here are those at the core's edge.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Seconds."""

    # From the core's decision to the plan's arrival at the worker: planning, half a round trip.
    plan_s: float = 70e-6
    # From the end of a step to its tokens in the core's hands: half a round trip, taking in.
    result_s: float = 50e-6
    # The engine sends a plan this much earlier than its pacer says, a poll's resolution.
    plan_slack_s: float = 1e-3
