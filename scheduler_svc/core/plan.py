"""A step as columns: what the workers are to do, and what they did. Knows no requests, no encoding.

The columns are those of step.proto, field by field.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler_svc.core.grammar import GrammarState
from scheduler_svc.core.records import Pooling
from scheduler_svc.core.request import SamplingParams

Int32s = npt.NDArray[np.int32]
UInt8s = npt.NDArray[np.uint8]


class BadResult(Exception):
    """A result contradicts the plan it answers: core and workers disagree, the epoch is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStart:
    """A sequence takes a slot (again)."""

    slot: int
    generation: int
    num_prompt_tokens: int
    sampling: SamplingParams  # its seed is derived for the output already
    stop_token_ids: tuple[int, ...]
    min_position: int  # first position at which a stop id may be chosen
    history: bytes = b""  # all known tokens as int32, where they are needed
    prompt_records_from: int = 0  # first position of the prompt with a record; 0: none
    num_prompt_top: int = 0
    pooling: Pooling | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaskedRow:
    """A sampling row of a sequence with a grammar: the step waits for its mask."""

    row: int  # index into the plan's slots
    slot: int
    generation: int
    grammar: GrammarState
    first_index: int  # of `tokens` among the output's generated tokens
    tokens: Int32s  # up to the newest; all of them when the sequence starts (again)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepPlan:
    """Everything that changed since the previous plan. Steady rows come first, then chunk rows."""

    step: int  # from 1 in each epoch

    slots: Int32s  # [num_rows]

    chunk_rows: Int32s  # [num_chunks] indexes into slots
    chunk_generations: Int32s  # [num_chunks]
    chunk_num_tokens: Int32s  # [num_chunks]
    chunk_start_positions: Int32s  # [num_chunks]
    chunk_samples: UInt8s  # [num_chunks]
    chunk_tokens: Int32s  # [num_prefill_tokens]

    new_block_slots: Int32s  # [num_new_blocks]
    new_block_indexes: Int32s  # [num_new_blocks]
    new_block_ids: Int32s  # [num_new_blocks]

    starts: tuple[SlotStart, ...]

    position_checksum: int  # xxh3-64 over slots, generations, start positions

    masked_rows: tuple[MaskedRow, ...] = ()  # by row

    # For metrics only.
    num_decode_rows: int
    num_prefill_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepResult:
    """Everything that happened in a step."""

    step: int
    tokens: Int32s  # of the sampling rows, in row order
    token_counts: Int32s | None  # [num_sampling_rows]; None when each got one, 0 for a failed row
    failed_rows: Int32s  # indexes into the plan's slots
    forward_us: int
    token_records: bytes = b""  # of the tokens whose sequence wants them, in order
    prompt_records: bytes = b""
    pooled: bytes = b""  # vectors of equal size
