"""Numbers about the core for metrics and introspection. Knows nothing of where they go."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """One consistent reading. `num_blocks_*` sum to `num_blocks`; `total_*` count from the process's start."""

    num_waiting: int  # sequences that wait, preempted ones included
    num_waiting_tokens: int  # known tokens of requests that have not run yet
    num_running: int  # sequences that hold a slot
    num_requests: int  # live and retained
    num_retained_tokens: int

    num_blocks: int
    num_blocks_in_use: int
    num_blocks_cached: int  # evictable
    num_blocks_fenced: int  # free once steps in flight are done
    num_blocks_free: int

    total_prompt_tokens: int  # of requests that began to run
    total_cached_tokens: int  # of those, found in the cache
    total_generated_tokens: int
    total_preemptions: int
