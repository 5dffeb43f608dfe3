"""What bounds the core: an epoch's worker limits, the operator's policy. Knows no requests."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """What every rank of the group can take; fixed for an epoch."""

    num_blocks: int  # block 0 included, which is never handed out
    block_size: int  # tokens in a block
    max_num_seqs: int  # slots of the resident batch
    max_num_batched_tokens: int  # most tokens computed in one step
    max_model_len: int  # most tokens of a sequence, prompt and output together
    vocab_size: int

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that sequences can hold."""
        return self.num_blocks - 1

    @property
    def max_sequence_tokens(self) -> int:
        """Most tokens of one sequence: the model's limit or the whole cache, whichever is less."""
        return min(self.max_model_len, self.num_usable_blocks * self.block_size)


_LEAST = {
    "num_blocks": 2,
    "block_size": 1,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "max_model_len": 2,
    "vocab_size": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the operator allows and prefers; fixed for the process."""

    max_steps_in_flight: int = 2
    use_prefix_cache: bool = True
    # Prompt tokens of one sequence in one step; 0: the step's budget decides.
    max_prefill_chunk_tokens: int = 0
    # Time between a stream's tokens that prompts sharing its steps should keep.
    target_token_time_s: float = 0.1
    # Longest step with a piece of a long prompt beside streams, in steps without prompts; 0: only
    # the time above counts.
    max_step_stretch: float = 1.7
    # Waiting requests that have not run yet.
    max_queue_requests: int = 2048
    max_queue_tokens: int = 4_000_000
    # Longest wait for the first step; 0: no limit.
    max_queue_s: float = 0.0
    max_outputs: int = 16
    # How often a waiting sequence may be passed by ones that fit when it does not.
    max_times_passed: int = 32
    # A waiting sequence rises by one priority class each time this long passes.
    ageing_s: float = 30.0
    # Life without an owner, and the tokens made meanwhile before the sequences pause.
    orphan_grace_s: float = 10.0
    max_orphan_tokens: int = 4096
    # Retention of ended requests.
    max_keep_for_s: float = 600.0
    max_retained_tokens: int = 4_000_000
