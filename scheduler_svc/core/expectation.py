"""When a new request's first token may come. Knows nothing of who asks.

Two things are waited for. Prompts ahead have to be computed, which is measured by token. And those
ahead need slots and blocks: where none are left, one comes free whenever a sequence ends, and how
long sequences stay is measured too. Both go on at once: the longer one counts.
"""

from scheduler_svc.core.census import Ahead
from scheduler_svc.core.epoch import Epoch
from scheduler_svc.core.lifecycle import Lifecycle
from scheduler_svc.core.pace import Pace

_STEPS_A_TURN = 1.5


class Expectation:
    """Estimates from what was measured of late."""

    def __init__(self, *, lifecycle: Lifecycle, pace: Pace) -> None:
        self._lifecycle = lifecycle
        self._pace = pace

    @property
    def is_founded(self) -> bool:
        """Whether anything was measured."""
        return self._pace.has_measured

    def first_token_s(self, ahead: Ahead, num_tokens: int) -> float:
        """Seconds until the first token of a prompt with so many tokens to compute."""
        ahead_s = max(self._pace.prefill_s(ahead.num_tokens), self._room_s(ahead, num_tokens))
        return ahead_s + self._pace.prefill_s(num_tokens) + self._turn_s()

    def queue_s(self) -> float:
        """Seconds until what waits now is computed."""
        census = self._lifecycle.room.census
        return self.first_token_s(Ahead(census.num_requests, census.num_tokens), 0)

    def _turn_s(self) -> float:
        """Beside streams: what is left of the step that runs, and the decode rows of its own."""
        epoch = self._lifecycle.epoch
        has_streams = epoch is not None and epoch.batch.num_occupied > 0
        return _STEPS_A_TURN * self._pace.decode_step_us / 1e6 if has_streams else 0.0

    def _room_s(self, ahead: Ahead, num_tokens: int) -> float:
        """Seconds until a slot and blocks are free for one behind those ahead."""
        epoch, stay_s = self._lifecycle.epoch, self._lifecycle.stays.typical_s
        if epoch is None or not epoch.batch.num_occupied:
            return 0.0
        num_wanted = ahead.num_requests + 1
        mean_tokens = (ahead.num_tokens + num_tokens) / num_wanted
        num_missing = num_wanted - _num_starts(epoch, mean_tokens)
        return max(num_missing, 0) * stay_s / epoch.batch.num_occupied


def _num_starts(epoch: Epoch, num_tokens: float) -> int:
    """How many prompts of so many tokens could start now."""
    blocks_each = max(epoch.num_blocks_for(round(num_tokens)), 1)
    return min(epoch.batch.num_free_slots, epoch.pool.num_available // blocks_each)
