"""Runs a rank's steps on a GPU: packs, copies in, replays, copies out, and never waits between.

A `StepRunner`. The batch lives on the device: block tables and last tokens by slot; a step brings
what changed. While one step runs the next is launched behind it.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

from worker_svc.batch_step import NO_RECORDS, BatchStep, SampledRows
from worker_svc.execution.graph_device import GraphDevice
from worker_svc.execution.programs import ChoiceShape
from worker_svc.execution.recorded_programs import RecordedPrograms
from worker_svc.execution.row_masks import masks_of
from worker_svc.execution.staging import Lane, StagingRing
from worker_svc.execution.step_layout import MOST_NEW_BLOCKS
from worker_svc.execution.step_packing import StepFacts, StepPacker, facts_of
from worker_svc.execution.step_rules import StepRules, Told, told_rows
from worker_svc.step_runner import StepOutcome, StepTiming

_LOGGER = logging.getLogger(__name__)

MOST_IN_FLIGHT = 2
_SLOW_NS = 50_000_000
_RECORD_LIMIT_MS = 60_000
# a device slower than this is taken to hang
_LEAST_TOKENS_PER_S = 2000.0


@dataclass(frozen=True, slots=True, eq=False)
class _Flying:
    """A launched step."""

    lane: Lane
    num_choosing: int
    num_results: int
    """Rows of the bucket: where the second half of the results begins."""
    received_ns: int
    launched_ns: int
    follows_running: bool
    """Whether the step before had not ended when this one was launched."""
    told: Told | None


class GpuRunner:
    """`launch` up to two steps, `collect` them in order."""

    def __init__(
        self,
        *,
        device: GraphDevice,
        programs: RecordedPrograms,
        num_tokenizer_ids: int,
        vocab_size: int,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        memory = programs.memory
        self._device = device
        self._programs = programs
        self._memory = memory
        self._num_tokenizer_ids = num_tokenizer_ids
        self._vocab_size = vocab_size
        self._clock_ns = clock_ns
        self._ring = StagingRing(
            device,
            num_lanes=MOST_IN_FLIGHT + 1,
            num_input_words=memory.areas.num_words,
            num_result_words=memory.results.shape[0],
        )
        self._packers: dict[int, StepPacker] = {}
        self._flying: deque[_Flying] = deque()
        self._known: tuple[BatchStep, StepFacts] | None = None
        self._last: _Flying | None = None
        self._last_done_ns = 0
        self._rules = StepRules(programs.rules, device)
        self._told: Told | None = None

    def begin_epoch(self) -> None:
        """What tables and last tokens hold is written anew by starts."""
        assert not self._flying
        self._rules.begin_epoch()
        self._last = None

    def time_limit_ms(self, step: BatchStep) -> int:
        """Long when the step needs work that was never recorded."""
        facts = self._facts(step)
        recording = 0 if self._programs.has(facts) else _RECORD_LIMIT_MS
        return recording + round(1000 * facts.num_tokens / _LEAST_TOKENS_PER_S)

    def launch(self, step: BatchStep, *, received_ns: int) -> None:
        """Begins the step; returns as soon as the device has been told."""
        facts = self._facts(step)
        self._programs.prepare(facts)
        lane = self._ring.take()
        follows_running = bool(self._flying) and not self._flying[-1].lane.end.is_done()
        launched_ns = self._clock_ns()
        self._told = None
        num_results = self._launch(step, facts, lane)
        lane.end.record()
        self._flying.append(
            _Flying(
                lane=lane,
                num_choosing=facts.num_choosing,
                num_results=num_results,
                received_ns=received_ns,
                launched_ns=launched_ns,
                follows_running=follows_running,
                told=self._told,
            )
        )

    def is_done(self) -> bool:
        """Asks the oldest step's event."""
        return bool(self._flying) and self._flying[0].lane.end.is_done()

    def collect(self) -> StepOutcome:
        """The oldest step's tokens, out of its lane."""
        flown = self._flying.popleft()
        flown.lane.end.wait()
        timing = self._timing(flown, self._clock_ns())
        count, second = flown.num_choosing, flown.num_results
        results = flown.lane.results.numpy()
        tokens, failed = results[:count].copy(), results[second : second + count] != 0
        records = NO_RECORDS
        if flown.told is not None:
            records = flown.told.records(failed)
            # there is no token, so it is 0
            tokens[flown.told.pooled_places] = 0
        return StepOutcome(SampledRows(tokens, failed, records), timing)

    def _facts(self, step: BatchStep) -> StepFacts:
        """Worked out once a step, although two methods ask."""
        if self._known is None or self._known[0] is not step:
            facts = facts_of(step, num_tokenizer_ids=self._num_tokenizer_ids, earlier=self._known)
            self._known = step, facts
        return self._known[1]

    @torch.inference_mode()
    def _launch(self, step: BatchStep, facts: StepFacts, lane: Lane) -> int:
        """Everything between the lane's two events; returns the rows of the results' bucket."""
        packer = self._packer(lane)
        if facts.is_decode:
            num_results = self._launch_decode(step, facts, packer, lane)
        else:
            num_results = self._launch_mixed(step, facts, packer, lane)
        if num_results:
            results = self._memory.results[: 2 * num_results]
            lane.results[: 2 * num_results].copy_(results, non_blocking=True)
        return num_results

    def _launch_decode(
        self, step: BatchStep, facts: StepFacts, packer: StepPacker, lane: Lane
    ) -> int:
        assert facts.block_rows is not None
        size = self._programs.decode_size(facts.num_rows)
        num_words = packer.decode(step, size, facts.block_rows)
        lane.begin.record()
        self._copy_in(lane, 0, num_words)
        self._programs.decode(size)
        return size

    def _launch_mixed(
        self, step: BatchStep, facts: StepFacts, packer: StepPacker, lane: Lane
    ) -> int:
        shape = self._programs.forward_shape(facts)
        num_words = packer.forward(step, shape, facts)
        lane.begin.record()
        self._add_blocks(step, packer, lane)
        self._copy_in(lane, 0, num_words)
        self._programs.forward(shape)
        if not facts.num_choosing:
            if step.rules:
                self._tell(step, None)
            return 0
        choice = self._programs.choice_shape(facts)
        num_words = packer.choice(step, choice.num_rows, num_tokenizer_ids=self._num_tokenizer_ids)
        words = None
        if facts.has_masks:
            rows, masks = masks_of(step, vocab_size=self._vocab_size)
            packer.mask_rows(choice.num_rows, rows)
            words = self._device.send(masks)
        self._copy_in(lane, self._memory.areas.num_forward_words, num_words)
        if step.rules:
            self._choose_by_rules(step, choice, words)
        else:
            self._programs.choose(choice, words)
        return choice.num_rows

    def _choose_by_rules(
        self, step: BatchStep, choice: ChoiceShape, words: torch.Tensor | None
    ) -> None:
        edits = self._rules.edits(step)
        device = self._programs.rules
        raw = self._programs.choose_edited(
            choice,
            words,
            edit=None if edits is None else lambda logits: device.edit(logits, edits),
            is_told=bool(told_rows(step)),
        )
        if edits is not None and edits.penalties is not None:
            device.note(edits.penalties, self._memory.results)
        self._tell(step, raw)

    def _tell(self, step: BatchStep, raw: torch.Tensor | None) -> None:
        self._told = self._rules.tell(
            step,
            self._memory.hidden,
            raw=raw,
            chosen=self._memory.results,
            logits_at=self._programs.logits_at,
        )

    def _copy_in(self, lane: Lane, first: int, num_words: int) -> None:
        part = slice(first, first + num_words)
        self._memory.packed[part].copy_(lane.inputs[part], non_blocking=True)

    def _add_blocks(self, step: BatchStep, packer: StepPacker, lane: Lane) -> None:
        blocks = step.new_blocks
        if blocks is None or blocks.slots.size == 0:
            return
        for first in range(0, blocks.slots.size, MOST_NEW_BLOCKS):
            if first:
                self._device.finish()  # rare: more than one copy holds
            part = slice(first, first + MOST_NEW_BLOCKS)
            packer.new_blocks(
                blocks.slots[part],
                blocks.indexes[part],
                blocks.ids[part],
                width=self._memory.sizes.blocks_per_slot,
            )
            self._memory.add_blocks(lane.inputs, blocks.slots[part].size)

    def _packer(self, lane: Lane) -> StepPacker:
        packer = self._packers.get(id(lane))
        if packer is None:
            packer = StepPacker(lane.inputs, self._memory.areas)
            self._packers[id(lane)] = packer
        return packer

    def _timing(self, flown: _Flying, done_ns: int) -> StepTiming:
        lane = flown.lane
        forward_us = lane.end.us_since(lane.begin)
        if done_ns - flown.launched_ns > _SLOW_NS:
            _LOGGER.debug(
                "a step took %.1f ms from launch to result, %.1f of it on the device",
                (done_ns - flown.launched_ns) / 1e6,
                forward_us / 1e3,
            )
        began_ns = done_ns - 1000 * forward_us
        if flown.follows_running and self._last is not None:
            stall_us = lane.begin.us_since(self._last.lane.end)
        else:
            stall_us = (began_ns - max(flown.received_ns, self._last_done_ns)) // 1000
        self._last, self._last_done_ns = flown, done_ns
        return StepTiming(
            forward_us=forward_us,
            stall_us=max(0, stall_us),
            queued_us=max(0, began_ns - flown.received_ns) // 1000,
        )
