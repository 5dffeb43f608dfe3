"""Requests: as they arrive, and as the core keeps them. Knows nothing of blocks, slots or steps."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scheduler_svc.core.grammar import Grammar
from scheduler_svc.core.records import NO_RECORDS, WORD_BYTES, RecordWishes

if TYPE_CHECKING:  # a request is made of sequences, and a sequence knows its request
    from scheduler_svc.core.news import RequestStart
    from scheduler_svc.core.sequence import Sequence


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
    QUEUE_TIME = "queue_time"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens; every field is resolved."""

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0  # 64 bits
    rules: bytes = b""  # whatever else changes logits or is told of tokens; the workers' alone
    needs_history: bool = False  # whether the rules look at earlier tokens
    largest_id: int = -1  # in the rules


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResumedOutput:
    """An output's tokens that its reader has already; they are never delivered again."""

    tokens: npt.NDArray[np.int32]
    reason: EndReason | None = None  # how it ended; None: it goes on
    stop_token_id: int | None = None
    message: str = ""
    records: bytes = b""  # of the tokens; empty where they are not known


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NewRequest:
    """A request as its owner submits it. Times are seconds on the core's clock."""

    tenant: str
    tenant_weight: float = 1.0  # its share is this much of what a tenant of weight 1 gets
    tenant_max_requests: int = 0  # most live requests of the tenant; 0: no limit
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
    grammar: Grammar | None = None  # the form of the outputs
    priority: int = 0  # lower is more urgent
    deadline: float | None = None
    time_limit_at: float | None = None
    keep_for_s: float = 0.0
    reads_cache: bool = True
    stores_cache: bool = True
    submitted_at: float  # arrival minus the age it came with
    resume: tuple[ResumedOutput, ...] = ()  # empty, or one entry for each output
    was_accepted: bool = False  # before a restart of the core: only faults of its own refuse it
    is_detached: bool = False  # nobody owns it: it is kept like a detached one
    num_core_deaths: int = 0  # restarts of the core it lived through without a new token
    records: RecordWishes = NO_RECORDS
    prompt_records: bytes = b""  # those that are known, from the first one on


@dataclass(slots=True, eq=False)
class Request:
    """A request that lives or is retained."""

    new: NewRequest
    order: int  # counts arrivals
    tenant_index: int
    max_tokens: int  # effective bound of each output's tokens
    keep_for_s: float
    reads_cache: bool
    stores_cache: bool
    arrived_at: float
    owner: int
    number: int
    deadline: float | None
    # Until it runs: the class it waits in, its own or one it has risen to, and since when.
    queue_class: int
    in_class_since: float
    queue_until: float | None  # when it ends if it has not run by then
    # Nobody reads it while it has no owner, or its owner is unseen.
    has_reader: bool = True
    sequences: list[Sequence] = field(default_factory=list)
    num_live: int = 0  # sequences that have not ended
    # Outputs after the first one run once they can share the prompt's blocks.
    are_followers_held: bool = False
    start: RequestStart | None = None
    # When it is forgotten; while it lives, only without a reader, and then it is cancelled too.
    keep_until: float | None = None
    num_retained_tokens: int = 0  # as counted when it ended
    prompt_records: bytearray = field(default_factory=bytearray)  # from the first wanted one on

    @property
    def key(self) -> tuple[str, str]:
        """Its global name."""
        return (self.new.tenant, self.new.request_id)

    @property
    def shares_prompt(self) -> bool:
        """Whether its outputs can share the blocks of their prompt."""
        return self.reads_cache and self.stores_cache

    @property
    def next_prompt_record(self) -> int:
        """First position of the prompt whose record is wanted and not known; 0: there is none."""
        wishes = self.new.records
        if not wishes.prompt_from:
            return 0
        known = len(self.prompt_records) // (WORD_BYTES * wishes.prompt_words)
        position = wishes.prompt_from + known
        return position if position < len(self.new.prompt) else 0

    @property
    def is_settled(self) -> bool:
        """Whether the owner has said of every output where it ends."""
        return all(sequence.is_settled for sequence in self.sequences)

    @property
    def leader(self) -> Sequence | None:
        """The first output that lives; it computes the prompt that the others share."""
        living = (sequence for sequence in self.sequences if sequence.end is None)
        return next(living, None)

    @property
    def next_due(self) -> float | None:
        """When time alone changes something about it."""
        times = [self.keep_until]
        if self.num_live:
            times += [self.deadline, self.new.time_limit_at]
            times += [self.queue_until] if self.start is None else []
        return min((time for time in times if time is not None), default=None)
