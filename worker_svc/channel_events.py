"""What a rank says of itself to the core, and what the core says to it. Values only, no socket."""

from dataclasses import dataclass
from typing import TypeAlias

from octavo.internal.v1 import step_pb2

EpochId: TypeAlias = tuple[int, int]
"""Core incarnation and counter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """What a rank says of itself in every Hello."""

    group_incarnation: int
    rank: int
    world_size: int
    model_digest: bytes
    model_type: str
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
    pid: int


@dataclass(frozen=True, slots=True)
class Welcomed:
    """An epoch begins; `RankChannel.ready` answers it."""

    num_blocks: int
    max_steps_in_flight: int
    num_tokenizer_ids: int


@dataclass(frozen=True, slots=True)
class PlanReceived:
    """The next step's plan, its number checked."""

    plan: step_pb2.StepPlan
    received_ns: int
    """When it was taken from the socket, on `time.monotonic_ns`."""


@dataclass(frozen=True, slots=True)
class MasksReceived:
    """Masks of a step of this epoch."""

    step: int
    masks: bytes


@dataclass(frozen=True, slots=True)
class EpochLeft:
    """The epoch is over and the core was greeted anew; the batch is void."""

    reason: str


@dataclass(frozen=True, slots=True)
class ShutDown:
    """The core asks this rank to finish what it has and to exit."""

    reason: str


Event: TypeAlias = Welcomed | PlanReceived | MasksReceived | EpochLeft | ShutDown
