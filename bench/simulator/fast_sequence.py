"""A request in a fast replica: how far it is planned. Decides nothing."""

from dataclasses import dataclass, field

from bench.simulator.fast_cache import Holding
from bench.simulator.jobs import Job


@dataclass(slots=True, eq=False)
class FastSequence:
    """Counts of one request; planned rows count as done."""

    job: Job
    num_computed: int = 0
    num_made: int = 0  # tokens of the answer
    # The row after an end that was not foreseen: computed, and dropped.
    has_extra_row: bool = False
    num_times_passed: int = 0
    holding: Holding = field(default_factory=Holding)

    @property
    def num_known(self) -> int:
        """Tokens that have to be computed before the next one is made."""
        return self.job.num_prompt_tokens + self.num_made

    @property
    def num_to_compute(self) -> int:
        """Tokens left of a prompt, made ones included when it is computed anew."""
        return self.num_known - self.num_computed

    @property
    def num_rows_left(self) -> int:
        """Rows that still make a token."""
        return self.job.turn.answer.num_tokens - self.num_made
