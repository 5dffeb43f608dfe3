"""Numbers about the core for metrics and introspection. Knows nothing of where they go."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """One consistent reading.

    `num_blocks_*` sum to `num_blocks`; all are 0 without workers. `total_*` count from the start.
    """

    num_waiting: int  # sequences that wait, preempted ones included
    num_waiting_tokens: int  # known tokens of requests that have not run yet
    num_running: int  # sequences that hold a slot
    num_live: int  # requests with an output that has not ended
    num_requests: int  # those and the retained ones
    num_retained_tokens: int

    num_blocks: int
    num_blocks_in_use: int
    num_blocks_cached: int  # evictable
    num_blocks_fenced: int  # free once steps in flight are done
    num_blocks_free: int

    total_prompt_tokens: int  # of requests that began to run, those resumed with tokens left out
    total_cached_tokens: int  # of those, found in the cache
    total_generated_tokens: int
    total_preemptions: int
    total_replayed_tokens: int  # known ones, computed again
