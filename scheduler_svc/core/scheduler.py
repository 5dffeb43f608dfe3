"""Makes the next step: decode rows first, then prompts. Knows nothing of results or owners."""

import numpy as np

from scheduler_svc.core.admission import Admission
from scheduler_svc.core.batch import Slots
from scheduler_svc.core.draft import Draft
from scheduler_svc.core.epoch import Epoch
from scheduler_svc.core.lifecycle import Lifecycle
from scheduler_svc.core.pace import Pace
from scheduler_svc.core.plan import StepPlan
from scheduler_svc.core.sequence import Sequence


class Scheduler:
    """Decides who computes what in the next step."""

    def __init__(self, *, lifecycle: Lifecycle, admission: Admission, pace: Pace) -> None:
        self._lifecycle = lifecycle
        self._admission = admission
        self._pace = pace

    def plan(self, epoch: Epoch, now: float) -> StepPlan | None:
        """The next step, issued; None if no row can run now."""
        draft = Draft(epoch)
        self._lifecycle.room.queue.rise(now)
        self._decode(epoch, draft, now)
        self._prefill(epoch, draft, now)
        plan = draft.finish()
        if plan is not None:
            self._publish_prompts(epoch, draft, now)
        return plan

    # --- decode rows ---

    def _decode(self, epoch: Epoch, draft: Draft, now: float) -> None:
        """Gives every decoding slot its row, if there is a block for it."""
        batch = epoch.batch
        slots = self._chosen(epoch, batch.ready(batch.decoding_slots()))
        if not len(slots):
            return
        needy = slots[batch.next_position[slots] >= batch.block_end[slots]]
        if len(needy) and not self._give_blocks(epoch, draft, needy.tolist(), now):
            has_room = batch.next_position[slots] < batch.block_end[slots]
            slots = slots[batch.decodes[slots] & has_room]
        draft.set_decodes(slots)
        self._lifecycle.shares.charge_rows(batch.tenant[slots])

    def _chosen(self, epoch: Epoch, slots: Slots) -> Slots:
        """As many as a step may compute; those that waited longest, if there are more."""
        most = epoch.limits.max_num_batched_tokens
        if len(slots) <= most:
            return slots
        longest_first = np.argsort(epoch.batch.last_step[slots], kind="stable")
        return np.sort(slots[longest_first[:most]])

    def _give_blocks(self, epoch: Epoch, draft: Draft, needy: list[int], now: float) -> bool:
        """Gives each of these slots a block; False if only some can have one."""
        blocks = epoch.pool.take(len(needy))
        is_enough = blocks is not None
        if blocks is None:
            needy = self._make_room(epoch, needy, now)
            blocks = epoch.pool.take(len(needy))
        assert blocks is not None, "more blocks were granted than are available"
        draft.add_blocks(needy, blocks)
        return is_enough

    def _make_room(self, epoch: Epoch, needy: list[int], now: float) -> list[int]:
        """Preempts as few sequences as needed; returns the slots that can have a block at once.

        Blocks about to be free count: what lacks then sits out a step instead of preempting more.
        The most urgent sequence is never preempted, so there is always one that goes on.
        """
        pool = epoch.pool
        num_short = len(needy) - pool.num_available - pool.num_fenced
        running = sorted(self._running(epoch), key=lambda sequence: sequence.urgency)
        wanting = set(needy)
        for victim in reversed(running[1:]):
            if num_short <= 0:
                break
            num_short -= pool.num_sole(victim.blocks) + (victim.slot in wanting)
            wanting.discard(victim.slot)
            self._lifecycle.preempt(epoch, victim, now)
        first = [sequence.slot for sequence in running if sequence.slot in wanting]
        return first[: pool.num_available]

    @staticmethod
    def _running(epoch: Epoch) -> list[Sequence]:
        departed = {gone.slot for gone in epoch.departures}
        return [sequence for sequence in epoch.batch.occupied() if sequence.slot not in departed]

    # --- prompts ---

    def _prefill(self, epoch: Epoch, draft: Draft, now: float) -> None:
        room, suspicion = self._lifecycle.room, self._lifecycle.room.suspicion
        most = epoch.limits.max_num_batched_tokens - draft.num_decode_rows
        num_prompts = len(epoch.prefilling) + min(len(room.queue), epoch.batch.num_free_slots)
        budget = self._pace.prefill_budget(
            num_decode_rows=draft.num_decode_rows, num_prompts=num_prompts, most=most
        )
        if budget.num_tokens <= 0:
            return
        if suspicion.waiting and not epoch.batch.num_occupied:
            self._admission.start_alone(draft, suspicion.waiting[0], budget.num_tokens, now)
            return
        # While a suspect waits nobody starts, so that the batch empties; while one runs, neither.
        has_candidates = bool(room.queue) and epoch.batch.num_free_slots > 0
        may_start = suspicion.is_open and has_candidates
        if may_start or epoch.prefilling:
            self._admission.fill(draft, budget, now, may_start=may_start)

    # --- once the step is issued ---

    def _publish_prompts(self, epoch: Epoch, draft: Draft, now: float) -> None:
        """Makes blocks of prompts findable that this step fills; those of decode rows wait for it.

        So two identical prompts share from the next step on, however long this one takes.
        """
        if not draft.chunked:
            return
        epoch.publish_full_blocks([sequence.slot for sequence in draft.chunked])
        for sequence in draft.chunked:
            if sequence not in epoch.prefilling:
                self._lifecycle.room.release_followers(sequence.request, now)
