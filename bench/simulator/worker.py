"""A worker that computes lengths and made-up tokens only. Knows plans, and nothing of the core.

A start's seed says which answer the sequence will give: its segment's key above, its length below.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.simulator.cost import ChunkWork, StepCost
from bench.simulator.prompts import EOS, Segment, tokens_at
from scheduler_svc.core.plan import StepPlan, StepResult

_NO_ROWS = np.empty(0, np.int32)


def answer_seed(answer: Segment) -> int:
    """The seed that makes a worker give this answer."""
    return answer.key << 32 | answer.num_tokens


@dataclass(frozen=True, slots=True)
class Computed:
    """A step's result and how long it took."""

    result: StepResult
    seconds: float


class SimulatedWorker:
    """Keeps what a rank keeps of each slot, and answers plans."""

    def __init__(self, cost: StepCost, *, num_slots: int) -> None:
        self._cost = cost
        self._position = np.zeros(num_slots, np.int64)
        self._num_prompt = np.zeros(num_slots, np.int64)
        self._answer_key = np.zeros(num_slots, np.uint64)
        self._answer_length = np.zeros(num_slots, np.int64)

    def compute(self, plan: StepPlan) -> Computed:
        """Does a step."""
        for start in plan.starts:
            self._num_prompt[start.slot] = start.num_prompt_tokens
            self._answer_key[start.slot] = start.sampling.seed >> 32
            self._answer_length[start.slot] = start.sampling.seed & 0xFFFF_FFFF
        decodes, chunked = plan.slots[: plan.num_decode_rows], plan.slots[plan.num_decode_rows :]
        self._position[decodes] += 1
        self._position[chunked] = plan.chunk_start_positions + plan.chunk_num_tokens
        seconds = self._cost.step_s(
            num_decode_rows=plan.num_decode_rows,
            num_context_tokens=int(self._position[decodes].sum()),
            chunks=_chunks(plan),
        )
        sampling = decodes
        if len(chunked):
            sampling = np.concatenate((decodes, chunked[plan.chunk_samples > 0]))
        result = StepResult(
            step=plan.step,
            tokens=self._tokens(sampling),
            token_counts=None,
            failed_rows=_NO_ROWS,
            forward_us=round(seconds * 1e6),
        )
        return Computed(result, seconds)

    def _tokens(self, slots: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        index = self._position[slots] - self._num_prompt[slots]
        tokens = tokens_at(self._answer_key[slots], index.astype(np.uint64))
        tokens[index == self._answer_length[slots] - 1] = EOS
        return tokens


def _chunks(plan: StepPlan) -> list[ChunkWork]:
    counts, starts = plan.chunk_num_tokens.tolist(), plan.chunk_start_positions.tolist()
    return [ChunkWork(count, start) for count, start in zip(counts, starts, strict=True)]
