"""What became of one request. Computes nothing over many."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field


def _times() -> array[float]:
    return array("d")


def _counts() -> array[int]:
    return array("i")


@dataclass(slots=True)
class Outcome:
    """Times are seconds since the load began."""

    num_prompt: int
    due_at: float
    """When it should go out. Waits count from here, also where the sender itself was late."""
    sent_at: float = 0.0
    token_times: array[float] = field(default_factory=_times)
    """When each message with tokens came, of all outputs."""
    token_counts: array[int] = field(default_factory=_counts)
    """Tokens in each of those."""
    ended_at: float = 0.0
    error: str = ""
    """Status and reason of a failure; empty when all tokens came."""

    @property
    def num_tokens(self) -> int:
        """Tokens that came, also of a request that failed."""
        return sum(self.token_counts)

    @property
    def ttft_s(self) -> float:
        """To the first token; only for a request that brought one."""
        return self.token_times[0] - self.due_at

    @property
    def e2e_s(self) -> float:
        """To the end."""
        return self.ended_at - self.due_at

    @property
    def gaps_s(self) -> list[float]:
        """Between messages with tokens: the stricter reading of inter-token latency."""
        times = self.token_times
        return [times[place] - times[place - 1] for place in range(1, len(times))]

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first; 0 for a single one."""
        later = self.num_tokens - 1
        return (self.token_times[-1] - self.token_times[0]) / later if later > 0 else 0.0
