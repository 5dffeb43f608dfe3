"""One output of a request: its tokens, its blocks, where it is in life. Decides nothing.

Objects like this exist for what is rare (arrival, start, preemption, end); while a sequence runs, what changes with every
step is in the columns of `batch`, and its newest tokens are in the batch's tail.
"""

import enum
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from scheduler_svc.core.news import OutputEnd
from scheduler_svc.core.prefix_cache import Link
from scheduler_svc.core.request import EndReason, Request

TOKEN_BYTES = 4


class Phase(enum.Enum):
    """Where a sequence is."""

    HELD = "held"  # runs later: the prompt it shares is not computed yet, or nobody reads it
    WAITING = "waiting"  # in the queue
    RUNNING = "running"  # has a slot
    LEAVING = "leaving"  # was preempted; its slot still takes in results of steps in flight
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Offer:
    """What it would take to start a sequence now: a memory, so that it is not worked out in every step."""

    num_blocks: int  # blocks to take from what is available
    num_tokens: int  # tokens to compute
    retry_step: int  # step from which on it is worked out anew


@dataclass(slots=True, eq=False)
class Sequence:
    """One output."""

    request: Request
    output_index: int
    limit: int  # most tokens, prompt included
    tokens: bytearray  # int32 each; all known ones, but for those in the batch's tail
    num_resumed: int = 0  # generated tokens that were known at arrival

    phase: Phase = Phase.HELD
    end: OutputEnd | None = None
    is_settled: bool = False  # its owner has said where it ends

    # While it waits.
    ticket: int = 0  # its place in the queue; 0: none
    num_times_passed: int = 0
    offer: Offer | None = None

    # While it runs.
    slot: int = -1
    blocks: list[int] = field(default_factory=list)
    link: Link | None = None  # where its next full block attaches; None: it publishes nothing
    num_linked: int = 0  # blocks before that

    num_preemptions: int = 0
    pause_length: int | None = None  # tokens at which it stops while nobody owns it
    num_fatal_steps: int = 0
    num_tokens_at_fatal: int = 0

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.new.prompt)

    @property
    def num_stored(self) -> int:
        """Known tokens, but for those in the batch's tail."""
        return len(self.tokens) // TOKEN_BYTES

    @property
    def urgency(self) -> tuple[int, float, int]:
        """Sorts running sequences: the last one is preempted first."""
        return (self.request.new.priority, self.request.new.submitted_at, self.request.order)

    @property
    def seed(self) -> int:
        """The seed of this output's noise."""
        seed = self.request.new.sampling.seed
        if self.output_index == 0:
            return seed
        derived: int = xxh3_64_intdigest(
            seed.to_bytes(8, "little") + self.output_index.to_bytes(4, "little")
        )
        return derived

    def token_slice(self, start: int, stop: int) -> bytes:
        """Stored tokens by position, as int32 bytes."""
        return bytes(self.tokens[start * TOKEN_BYTES : stop * TOKEN_BYTES])

    def generated_from(self, index: int) -> npt.NDArray[np.int32]:
        """Generated tokens from an index on, those in the batch's tail excepted."""
        return np.frombuffer(self.token_slice(self.num_prompt + index, self.num_stored), np.int32)

    def end_reason_of(self, token: int, position: int) -> EndReason | None:
        """How a token that was sampled for a position ends the output, if it does."""
        new = self.request.new
        if position < self.num_prompt + new.min_tokens:
            return None
        if token in new.eos_token_ids:
            return EndReason.EOS
        return EndReason.STOP_TOKEN if token in new.stop_token_ids else None
