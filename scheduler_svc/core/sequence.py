"""One output of a request: its tokens, its blocks, where it is in life. Decides nothing.

Objects like this exist for what is rare: arrival, start, preemption, end. While a sequence runs,
what changes with every step is in the columns of `batch`, its newest tokens in the batch's tail.
"""

import enum
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from scheduler_svc.core.grammar import GrammarState
from scheduler_svc.core.news import OutputEnd
from scheduler_svc.core.prefix_cache import Link
from scheduler_svc.core.records import WORD_BYTES, Pooling
from scheduler_svc.core.request import EndReason, Request, SamplingParams

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
    """What it takes to start a sequence, remembered so that not every plan works it out anew."""

    num_blocks: int  # blocks to take from what is available
    num_tokens: int  # tokens to compute
    retry_plan: int  # number of the plan that works it out anew


@dataclass(slots=True, eq=False)
class Sequence:
    """One output."""

    request: Request
    output_index: int
    limit: int  # most tokens, prompt included
    tokens: bytearray  # int32 each; all known ones, but for those in the batch's tail

    records: bytearray = field(default_factory=bytearray)  # of all generated tokens, if wanted

    phase: Phase = Phase.HELD
    end: OutputEnd | None = None
    grammar: GrammarState | None = None  # while it lives, if it has a form
    is_settled: bool = False  # its owner has said where it ends

    # While it waits.
    ticket: int = 0  # its place in the queue; 0: none
    num_times_passed: int = 0
    offer: Offer | None = None

    # While it runs.
    started_at: float = 0.0
    slot: int = -1
    blocks: list[int] = field(default_factory=list)
    link: Link | None = None  # where its next full block attaches; None: it publishes nothing
    num_linked: int = 0  # blocks before that
    records_begin: int = 0  # first position of the prompt whose record its slot gives; 0: none

    num_preemptions: int = 0
    has_run: bool = False
    pause_length: int | None = None  # tokens at which it stops while nobody owns it
    num_deaths: int = 0  # fatal steps it was in, since its newest token
    num_tokens_at_death: int = 0

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.new.prompt)

    @property
    def num_stored(self) -> int:
        """Known tokens, but for those in the batch's tail."""
        return len(self.tokens) // TOKEN_BYTES

    @property
    def is_over_pause(self) -> bool:
        """Whether it has made all tokens that it makes without a reader."""
        return self.pause_length is not None and self.num_stored >= self.pause_length

    @property
    def is_suspect(self) -> bool:
        """Whether it has to run alone: two steps died with it, and it has no new token since."""
        return self.num_deaths >= 2 and self.num_stored <= self.num_tokens_at_death

    @property
    def urgency(self) -> tuple[int, float, int]:
        """Sorts running sequences: the last one is preempted first."""
        return (self.request.new.priority, self.request.new.submitted_at, self.request.order)

    @property
    def prompt_records_from(self) -> int:
        """First position of the prompt whose record this output is to bring; 0: none."""
        return self.request.next_prompt_record if self is self.request.leader else 0

    @property
    def num_matchable(self) -> int:
        """Tokens that may be taken from the cache: the others have to be computed."""
        if self.request.new.records.pooling is Pooling.MEAN:
            return 0
        # The last known token is always computed: its logits are what the next one is drawn from.
        most = self.num_stored - 1
        first_record = self.prompt_records_from
        return min(most, first_record - 1) if first_record else most

    @property
    def sampling(self) -> SamplingParams:
        """How to choose its tokens, with a seed of its own."""
        sampling = self.request.new.sampling
        if self.output_index == 0:
            return sampling
        place = self.output_index.to_bytes(4, "little")
        return replace(
            sampling, seed=xxh3_64_intdigest(sampling.seed.to_bytes(8, "little") + place)
        )

    def token_slice(self, start: int, stop: int) -> bytes:
        """Stored tokens by position, as int32 bytes."""
        return bytes(self.tokens[start * TOKEN_BYTES : stop * TOKEN_BYTES])

    def token_at(self, position: int) -> int:
        """A stored token."""
        return int.from_bytes(self.token_slice(position, position + 1), "little")

    def generated_from(self, index: int) -> npt.NDArray[np.int32]:
        """Generated tokens from an index on, those in the batch's tail excepted."""
        return np.frombuffer(self.token_slice(self.num_prompt + index, self.num_stored), np.int32)

    def records_from(self, index: int) -> bytes:
        """Records of the generated tokens from an index on, those in the batch's tail included."""
        wishes = self.request.new.records
        if wishes.pooling is not None:
            return b"" if index else bytes(self.records)
        return bytes(self.records[index * WORD_BYTES * wishes.token_words :])

    def cut(self, num_generated: int) -> None:
        """Forgets the generated tokens behind so many, with their records."""
        del self.tokens[(self.num_prompt + num_generated) * TOKEN_BYTES :]
        wishes = self.request.new.records
        if wishes.pooling is None or not num_generated:
            del self.records[num_generated * WORD_BYTES * wishes.token_words :]

    def end_reason_of(self, token: int, position: int) -> EndReason | None:
        """How a token that was sampled for a position ends the output, if it does."""
        new = self.request.new
        if position < self.num_prompt + new.min_tokens:
            return None
        if token in new.eos_token_ids:
            return EndReason.EOS
        return EndReason.STOP_TOKEN if token in new.stop_token_ids else None
