"""Steps on their way from plan to result, in order. Knows no slot and no epoch's beginning or end.

A step that lacks its masks holds back those behind it. Which steps are launched depends on the
order of messages alone, so all ranks of a group launch the same.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from octavo.internal.v1 import step_pb2
from worker_svc.batch import PlannedStep, with_masks
from worker_svc.batch_step import NO_RECORDS, BatchStep, Int32s
from worker_svc.channel import RankChannel
from worker_svc.channel_events import EpochId
from worker_svc.plan_columns import require
from worker_svc.step_runner import StepOutcome, StepRunner

# a step that may honestly take longer is announced, so that its deadline is not the usual one
_ANNOUNCED_MS = 5_000
_UINT32_MAX = 2**32 - 1


@dataclass(slots=True, eq=False)
class _Waiting:
    """A planned step that is not launched; `step` is None while masks lack."""

    planned: PlannedStep
    received_ns: int
    step: BatchStep | None


@dataclass(frozen=True, slots=True, eq=False)
class _Flying:
    """A launched step whose result is not taken yet."""

    number: int
    epoch: EpochId
    sampling_rows: Int32s


class StepQueue:
    """The steps of one rank. Rank 0 answers them."""

    def __init__(self, *, runner: StepRunner, channel: RankChannel) -> None:
        self.max_in_flight = 1
        self.last_launched = 0
        self._runner = runner
        self._channel = channel
        self._waiting: deque[_Waiting] = deque()
        self._flying: deque[_Flying] = deque()

    @property
    def is_flying(self) -> bool:
        """Whether a launched step has not been answered."""
        return bool(self._flying)

    def add(self, planned: PlannedStep, *, received_ns: int) -> None:
        """Takes the next step."""
        step = None if planned.awaits_mask_rows.size else planned.step
        self._waiting.append(_Waiting(planned, received_ns, step))

    def add_masks(self, number: int, masks: bytes) -> None:
        """Completes a step; raises ProtocolFault when it waits for no such masks."""
        found = [w for w in self._waiting if w.planned.number == number and w.step is None]
        require(bool(found), "late_inputs.step", f"step {number} waits for no masks")
        vocab_size = self._channel.introduction.vocab_size
        found[0].step = with_masks(found[0].planned, masks, vocab_size=vocab_size)

    def drop_waiting(self) -> None:
        """Forgets what was not launched: its epoch is over."""
        self._waiting.clear()

    def finish(self) -> None:
        """Waits for everything launched."""
        while self._flying:
            self._answer_oldest()

    def advance(self) -> None:
        """Answers what is done and launches what can be, oldest first."""
        while self._answer() or self._launch():
            pass

    def _launch(self) -> bool:
        if not self._waiting or len(self._flying) >= self.max_in_flight:
            return False
        number, step = self._waiting[0].planned.number, self._waiting[0].step
        if step is None:
            return False
        received_ns = self._waiting.popleft().received_ns
        epoch = self._channel.epoch
        assert epoch is not None, "steps wait only inside an epoch"
        limit_ms = self._runner.time_limit_ms(step)
        if limit_ms > _ANNOUNCED_MS:
            self._channel.busy(f"a step of {step.token_ids.size} tokens", limit_ms=limit_ms)
        # noted first: a launch that fails half-way has met the other ranks already
        self.last_launched = number
        self._channel.launched(number)
        self._runner.launch(step, received_ns=received_ns)
        self._flying.append(_Flying(number, epoch, np.flatnonzero(step.samples).astype(np.int32)))
        return True

    def _answer(self) -> bool:
        if not self._flying or not self._runner.is_done():
            return False
        self._answer_oldest()
        return True

    def _answer_oldest(self) -> None:
        flown = self._flying.popleft()
        outcome = self._runner.collect()
        if self._channel.introduction.rank == 0:
            result = result_of(flown.number, flown.sampling_rows, outcome)
            self._channel.answer(result, epoch=flown.epoch)


def result_of(number: int, sampling_rows: Int32s, outcome: StepOutcome) -> step_pb2.StepResult:
    """The message that tells what a step did; its epoch is not set."""
    failed, timing = outcome.rows.failed, outcome.timing
    result = step_pb2.StepResult(
        step=number,
        tokens=outcome.rows.tokens[~failed].astype("<i4").tobytes(),
        forward_us=min(timing.forward_us, _UINT32_MAX),
        stall_us=min(timing.stall_us, _UINT32_MAX),
        queued_us=min(timing.queued_us, _UINT32_MAX),
    )
    records = outcome.rows.records
    if records is not NO_RECORDS:
        result.token_records = records.token_records
        result.prompt_records = records.prompt_records
        result.pooled = records.pooled
    if failed.any():
        result.token_counts = (~failed).astype("<i4").tobytes()
        result.failed_rows = sampling_rows[failed].astype("<i4").tobytes()
    return result
