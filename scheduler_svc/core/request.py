"""Requests as they arrive. Knows nothing of blocks, slots or steps."""

import enum
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


class EndReason(enum.Enum):
    """How an output ended."""

    EOS = "eos"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"  # only an owner says so
    LENGTH = "length"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens; every field is resolved."""

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0  # 64 bits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResumedOutput:
    """An output's tokens that its reader has already; they are never delivered again."""

    tokens: npt.NDArray[np.int32]
    reason: EndReason | None = None  # how it ended; None: it goes on
    stop_token_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NewRequest:
    """A request as its owner submits it. Times are seconds on the core's clock."""

    tenant: str
    request_id: str
    owner: int
    number: int  # unique among the owner's requests
    blob: bytes  # opaque, given back to whoever attaches
    body_digest: bytes
    prompt: npt.NDArray[np.int32]
    num_outputs: int = 1
    max_tokens: int | None = None  # of each output; None: as many as fit
    min_tokens: int = 0
    eos_token_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    sampling: SamplingParams = SamplingParams()
    priority: int = 0  # lower is more urgent
    deadline: float | None = None
    time_limit_at: float | None = None
    keep_for_s: float = 0.0
    reads_cache: bool = True
    stores_cache: bool = True
    submitted_at: float  # arrival minus the age it came with
    resume: tuple[ResumedOutput, ...] = ()  # empty, or one entry for each output
    was_accepted: bool = False  # before a restart of the core: no queue limit applies
