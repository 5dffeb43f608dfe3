"""Step plans to bytes, rank messages to results. Knows nothing of epochs' lives, sockets or
requests.

A plan is encoded once for all ranks. Its columns are arrays in memory as they are on the wire,
little-endian int32, so that a steady step costs a copy and no loop.
"""

import sys

import numpy as np
import numpy.typing as npt

from octavo.internal.v1 import step_pb2 as step
from scheduler_svc.core.plan import SlotStart, StepPlan, StepResult
from scheduler_svc.engine.rules_codec import slot_pooling

# columns are copied as they lie in memory
assert sys.byteorder == "little", "the step protocol's columns are little-endian"

_NO_ROWS = np.zeros(0, np.int32)


class MalformedMessage(Exception):
    """A peer's message breaks the protocol; names the field and the rule."""


def encode_plan(plan: StepPlan, epoch: step.Epoch) -> bytes:
    """The CoreToRank message of a plan."""
    message = step.CoreToRank()
    out = message.plan
    out.epoch.CopyFrom(epoch)
    out.step = plan.step
    out.slots = plan.slots.tobytes()
    out.position_checksum = plan.position_checksum
    if len(plan.chunk_rows):
        out.chunk_rows = plan.chunk_rows.tobytes()
        out.chunk_generations = plan.chunk_generations.tobytes()
        out.chunk_num_tokens = plan.chunk_num_tokens.tobytes()
        out.chunk_start_positions = plan.chunk_start_positions.tobytes()
        out.chunk_samples = plan.chunk_samples.tobytes()
        out.chunk_tokens = plan.chunk_tokens.tobytes()
    if len(plan.new_block_slots):
        out.new_block_slots = plan.new_block_slots.tobytes()
        out.new_block_indexes = plan.new_block_indexes.tobytes()
        out.new_block_ids = plan.new_block_ids.tobytes()
    for start in plan.starts:
        _encode_start(start, out.starts.add())
    if plan.masked_rows:
        masked = [each.row for each in plan.masked_rows]
        out.awaits_mask_rows = np.array(masked, np.int32).tobytes()
    return message.SerializeToString()


def encode_masks(masks: bytes, *, step_number: int, epoch: step.Epoch) -> bytes:
    """The CoreToRank message of the masks that a step waits for."""
    late = step.LateInputs(epoch=epoch, step=step_number, masks=masks)
    return step.CoreToRank(late_inputs=late).SerializeToString()


def _encode_start(start: SlotStart, out: step.SlotStart) -> None:
    out.slot = start.slot
    out.generation = start.generation
    out.num_prompt_tokens = start.num_prompt_tokens
    out.min_position = start.min_position
    out.stop_token_ids.extend(start.stop_token_ids)
    out.history = start.history
    out.prompt_records_from = start.prompt_records_from
    out.num_prompt_top_logprobs = start.num_prompt_top
    out.pooling = slot_pooling(start.pooling)
    out.sampling.MergeFromString(start.sampling.rules)
    out.sampling.temperature = start.sampling.temperature
    out.sampling.top_k = start.sampling.top_k
    out.sampling.top_p = start.sampling.top_p
    out.sampling.min_p = start.sampling.min_p
    out.sampling.seed = start.sampling.seed


def decode_result(result: step.StepResult) -> StepResult:
    """A rank's result as the core takes it. Raises MalformedMessage."""
    return StepResult(
        step=result.step,
        tokens=_int32s(result.tokens, "tokens"),
        token_counts=_int32s(result.token_counts, "token_counts") if result.token_counts else None,
        failed_rows=_int32s(result.failed_rows, "failed_rows") if result.failed_rows else _NO_ROWS,
        forward_us=result.forward_us,
        token_records=result.token_records,
        prompt_records=result.prompt_records,
        pooled=result.pooled,
    )


def _int32s(column: bytes, name: str) -> npt.NDArray[np.int32]:
    if len(column) % 4:
        raise MalformedMessage(f"{name} must be int32 values, got {len(column)} bytes")
    return np.frombuffer(column, np.int32)
