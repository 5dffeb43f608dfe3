"""Takes a step's tokens in: what is known, what ends, what failed. Knows no queue, no owner."""

import numpy as np
import numpy.typing as npt

from scheduler_svc.core.batch import Slots
from scheduler_svc.core.epoch import Epoch, StepInFlight
from scheduler_svc.core.lifecycle import Lifecycle
from scheduler_svc.core.news import TokenRows, no_rows
from scheduler_svc.core.pace import Pace
from scheduler_svc.core.plan import BadResult, Int32s, StepResult
from scheduler_svc.core.record_intake import (
    check_prompt_records,
    cut_row_records,
    take_prompt_records,
)
from scheduler_svc.core.request import EndReason
from scheduler_svc.core.sequence import Phase

FAILED_MESSAGE = "the model's logits were not numbers, or no token was allowed"


class Results:
    """Applies results to the batch."""

    def __init__(self, *, lifecycle: Lifecycle, pace: Pace) -> None:
        self._lifecycle = lifecycle
        self._pace = pace
        self.total_generated_tokens = 0

    def apply(self, epoch: Epoch, result: StepResult, now: float) -> TokenRows:
        """Takes the oldest step in flight in; raises BadResult, having changed nothing."""
        step = self._answered(epoch, result)
        rows = self._sampled_rows(step, result)
        records = cut_row_records(epoch.batch, step.slots[rows], result)
        check_prompt_records(step, result)
        epoch.in_flight.popleft()
        epoch.num_done = step.step
        self._pace.observe(
            num_decode_rows=step.num_decode_rows,
            num_prefill_tokens=step.num_prefill_tokens,
            forward_us=result.forward_us,
        )
        take_prompt_records(epoch.batch, step, result.prompt_records, self._lifecycle.news)
        news = self._take_in(epoch, step.slots[rows], result.tokens, records, now)
        suspicion = self._lifecycle.room.suspicion
        cleared = suspicion.clear(epoch)
        if cleared is not None and suspicion.waiting:
            # the next suspect needs an empty batch: it does not wait for this one's end
            self._lifecycle.pause(epoch, cleared, now)
        for row in result.failed_rows.tolist():
            self._fail(epoch, int(step.slots[row]), now)
        self._lifecycle.land(epoch, now)
        return news

    # --- checks ---

    @staticmethod
    def _answered(epoch: Epoch, result: StepResult) -> StepInFlight:
        if not epoch.in_flight:
            raise BadResult(f"result of step {result.step}, but no step is in flight")
        step = epoch.in_flight[0]
        if step.step != result.step:
            raise BadResult(f"result of step {result.step}, but step {step.step} comes first")
        # As unsigned, a negative token is a large one.
        if result.tokens.size and result.tokens.view(np.uint32).max() >= epoch.limits.vocab_size:
            raise BadResult(f"step {step.step} has a token outside the vocabulary")
        return step

    @staticmethod
    def _sampled_rows(step: StepInFlight, result: StepResult) -> Slots:
        """Indexes of the rows that got a token each, in the tokens' order."""
        rows, failed = step.sampling_rows, result.failed_rows
        if failed.size or result.token_counts is not None:
            counts = result.token_counts
            if failed.size and not (failed.min() >= 0 and failed.max() < len(step.slots)):
                raise BadResult(f"step {step.step} names a failed row that it does not have")
            expected = np.isin(rows, failed, invert=True)
            if counts is None or not np.array_equal(counts, expected):
                raise BadResult(f"step {step.step}: token counts do not fit its rows")
            rows = rows[expected]
        if len(rows) != len(result.tokens):
            raise BadResult(f"step {step.step}: {len(result.tokens)} tokens for {len(rows)} rows")
        return rows

    # --- tokens ---

    def _take_in(
        self,
        epoch: Epoch,
        slots: Slots,
        tokens: Int32s,
        records: list[bytes] | None,
        now: float,
    ) -> TokenRows:
        batch = epoch.batch
        # Rows of sequences that have left are dropped; their slots are not in other use yet.
        wanted = batch.accepts[slots]
        if not wanted.all():
            slots, tokens = slots[wanted], tokens[wanted]
            if records is not None:
                records = [records[row] for row in np.flatnonzero(wanted).tolist()]
        if not len(slots):
            return no_rows()
        position = batch.known_length[slots]
        place = position % batch.block_size
        batch.tail[slots, place] = tokens
        known = position + 1
        batch.known_length[slots] = known
        self.total_generated_tokens += len(slots)
        news = TokenRows(
            owners=batch.owner[slots],
            numbers=batch.number[slots],
            output_indexes=batch.output_index[slots],
            first_token_indexes=position - batch.num_prompt[slots],
            tokens=tokens,
            records=None if records is None else tuple(records),
        )
        if records is not None:
            for slot, record in zip(slots.tolist(), records, strict=True):
                batch.sequence_in(slot).records += record
        batch.store_full_tails(slots[place == batch.block_size - 1])
        epoch.publish_full_blocks(slots)
        self._halt(epoch, slots, known, tokens, now)
        return news

    def _halt(
        self,
        epoch: Epoch,
        slots: Slots,
        known: npt.NDArray[np.int32],
        tokens: Int32s,
        now: float,
    ) -> None:
        """Ends what met a stop id or its limit, pauses what nobody reads."""
        batch = epoch.batch
        halts = (known >= batch.halt_length[slots]) | (batch.num_watchers[tokens] > 0)
        for row in halts.nonzero()[0].tolist():
            sequence = batch.sequence_in(int(slots[row]))
            length, token = int(known[row]), int(tokens[row])
            reason = sequence.end_reason_of(token, length - 1)
            if reason is not None:
                self._lifecycle.end(sequence, reason, now, stop_token_id=token)
            elif length >= sequence.limit:
                self._lifecycle.end(sequence, EndReason.LENGTH, now)
            elif sequence.phase is Phase.RUNNING and length >= int(
                batch.halt_length[sequence.slot]
            ):
                self._lifecycle.pause(epoch, sequence, now)

    # --- failures ---

    def _fail(self, epoch: Epoch, slot: int, now: float) -> None:
        """Ends the output of a failed row; whoever shares its blocks computes them anew."""
        batch = epoch.batch
        failed = batch.sequences[slot]
        if failed is None:
            return
        held = epoch.held_blocks()
        tainted = set(held[slot])
        epoch.pool.unpublish(tainted)
        sharers = [batch.sequence_in(other) for other in held if tainted & set(held[other])]
        self._lifecycle.end(failed, EndReason.ERROR, now, message=FAILED_MESSAGE)
        for sequence in sharers:
            if sequence is not failed:
                self._lifecycle.recompute(epoch, sequence, now)
