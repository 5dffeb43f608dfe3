"""Which prompts a step computes, and how much of each. Knows no decode rows beyond their number.

One budget of tokens is shared out in this order:

1. the prompt that runs longest is sure of a quarter;
2. running prompts that the rest lets end, the shortest first; then waiting ones likewise, in the
   queue's order, so that a short prompt does not stand behind a long one;
3. what is left goes to the others: those that run, in the order of their start, then the first that
   waits. Long ones bring the step to the budget's lower limit only.

A waiting sequence that does not fit now, for lack of blocks or of budget, is passed by at most so
many others; after that nobody passes it. And no tenant passes another's sequence that has been
served a whole sequence's tokens more than the other. Matching the prefix, reserving blocks and
sizing the chunk are one decision.
"""

from contextlib import closing

from scheduler_svc.core.budget import Allowance, Budget
from scheduler_svc.core.draft import Draft
from scheduler_svc.core.epoch import Epoch
from scheduler_svc.core.lifecycle import Lifecycle
from scheduler_svc.core.limits import Policy
from scheduler_svc.core.pace import Pace
from scheduler_svc.core.prefix_cache import Match
from scheduler_svc.core.request import EndReason
from scheduler_svc.core.sequence import Offer, Sequence

# Sequences that do not fit, looked at in one plan.
_MAX_LOOK_AHEAD = 8
# Plans in which a sequence that did not fit is judged by what was worked out then.
_NUM_PLANS_REMEMBERED = 8


class Admission:
    """Fills a draft with chunks of running and waiting prompts."""

    def __init__(self, policy: Policy, *, lifecycle: Lifecycle, pace: Pace) -> None:
        self._policy = policy
        self._lifecycle = lifecycle
        self._pace = pace
        self._num_plans = 0

    def fill(self, draft: Draft, budget: Budget, now: float, *, may_start: bool) -> None:
        """Gives chunks within the budget; starts waiting sequences if it may."""
        self._num_plans += 1
        running = list(draft.epoch.prefilling)
        sure = min(self._chunk(draft.epoch, running[0]), budget.num_sure_tokens) if running else 0
        allowance = Allowance(budget, num_reserved=sure)
        for sequence in sorted(running[1:], key=lambda each: self._remaining(draft.epoch, each)):
            if self._chunk(draft.epoch, sequence) <= allowance.num_left:
                self._give(draft, sequence, allowance, allowance.num_left)
        passed: list[Sequence] = []
        if may_start and allowance.num_left:
            passed = self._start_short(draft, allowance, now)
        allowance.open_to_pieces()
        for sequence in running:
            most = allowance.num_left_for(sequence.num_stored)
            if sequence not in draft.chunked and most:
                self._give(draft, sequence, allowance, most)
        self._start_long(draft, passed, allowance, now)

    def start_alone(self, draft: Draft, sequence: Sequence, budget: int, now: float) -> None:
        """Starts a suspect, if it fits; the batch is empty."""
        match = self._consider(draft.epoch, sequence, None)
        if match is not None:
            allowance = Allowance(Budget(budget, budget), num_reserved=0)
            self._start(draft, sequence, match, now)
            self._give(draft, sequence, allowance, budget)

    def _start_short(self, draft: Draft, allowance: Allowance, now: float) -> list[Sequence]:
        """Starts waiting sequences that end their prompt; returns who was passed."""
        passed: list[Sequence] = []
        batch = draft.epoch.batch
        with closing(self._lifecycle.room.queue.walk()) as candidates:
            for sequence in candidates:
                if self._leads_too_far(draft.epoch, sequence, passed):
                    break
                left = allowance.num_left
                match = self._consider(draft.epoch, sequence, left)
                if self._is_late(draft.epoch, sequence, now):
                    self._lifecycle.end_request(sequence.request, EndReason.DEADLINE, now)
                    passed = [each for each in passed if each.end is None]
                elif match is not None:
                    self._note_passed(passed)
                    self._start(draft, sequence, match, now)
                    self._give(draft, sequence, allowance, left)
                else:
                    passed.append(sequence)
                may_go_on = (
                    allowance.num_left and batch.num_free_slots and len(passed) < _MAX_LOOK_AHEAD
                )
                if not may_go_on or not all(self._may_be_passed(each) for each in passed):
                    break
        return passed

    def _may_be_passed(self, sequence: Sequence) -> bool:
        return sequence.num_times_passed < self._policy.max_times_passed

    def _leads_too_far(self, epoch: Epoch, sequence: Sequence, passed: list[Sequence]) -> bool:
        """Whether its tenant has been served so much that it may not pass these."""
        if not passed:
            return False
        shares = self._lifecycle.shares
        least = min(shares.served(each.request.tenant_index) for each in passed)
        lead = shares.served(sequence.request.tenant_index) - least
        return lead > epoch.limits.max_sequence_tokens

    def _start_long(
        self, draft: Draft, passed: list[Sequence], allowance: Allowance, now: float
    ) -> None:
        """Starts the first of those that lacked nothing but budget, with what is left of it."""
        for index, sequence in enumerate(passed):
            most = allowance.num_left_for(sequence.num_stored)
            if not (most and draft.epoch.batch.num_free_slots):
                return
            if self._leads_too_far(draft.epoch, sequence, passed[:index]):
                return
            match = self._consider(draft.epoch, sequence, None)
            if match is not None:
                self._note_passed(passed[:index])
                self._start(draft, sequence, match, now)
                self._give(draft, sequence, allowance, most)
                return
            if not self._may_be_passed(sequence):
                return

    def _consider(self, epoch: Epoch, sequence: Sequence, left: int | None) -> Match | None:
        """The match to start a sequence with; None if blocks or budget do not suffice now."""
        remembered = sequence.offer
        if remembered is not None and self._num_plans >= remembered.retry_plan:
            remembered = None
        if remembered is not None and not self._fits(epoch, remembered, left):
            return None
        match = self._match(epoch, sequence)
        num_new = epoch.num_blocks_for(sequence.num_stored) - len(match.blocks)
        offer = Offer(
            num_blocks=num_new + epoch.pool.num_idle(match.blocks),
            num_tokens=sequence.num_stored - len(match.blocks) * epoch.limits.block_size,
            retry_plan=self._num_plans + _NUM_PLANS_REMEMBERED,
        )
        sequence.offer = offer
        return match if self._fits(epoch, offer, left) else None

    def _fits(self, epoch: Epoch, offer: Offer, left: int | None) -> bool:
        # A block for each sequence that runs, lest it be preempted as soon as it grows.
        headroom = epoch.batch.num_occupied
        if offer.num_blocks + headroom > epoch.pool.num_available:
            return False
        return left is None or self._capped(offer.num_tokens) <= left

    def _match(self, epoch: Epoch, sequence: Sequence) -> Match:
        cache = epoch.pool.cache
        root = cache.root(sequence.request.new.tenant)
        if not sequence.request.reads_cache:
            return Match([], root)
        most = sequence.num_matchable // epoch.limits.block_size
        return cache.match(root, sequence.tokens, max_blocks=most)

    def _start(self, draft: Draft, sequence: Sequence, match: Match, now: float) -> None:
        self._lifecycle.start(draft.epoch, sequence, match, now)
        draft.add_start(sequence)

    def _give(self, draft: Draft, sequence: Sequence, allowance: Allowance, most: int) -> None:
        """Gives a sequence its next chunk."""
        num_tokens = min(self._chunk(draft.epoch, sequence), most)
        draft.add_chunk(sequence, num_tokens)
        allowance.take(num_tokens)
        self._lifecycle.shares.charge(sequence.request.tenant_index, num_tokens)

    def _chunk(self, epoch: Epoch, sequence: Sequence) -> int:
        return self._capped(self._remaining(epoch, sequence))

    def _capped(self, num_tokens: int) -> int:
        most = self._policy.max_prefill_chunk_tokens
        return min(num_tokens, most) if most else num_tokens

    @staticmethod
    def _remaining(epoch: Epoch, sequence: Sequence) -> int:
        return sequence.num_stored - int(epoch.batch.next_position[sequence.slot])

    @staticmethod
    def _note_passed(passed: list[Sequence]) -> None:
        for sequence in passed:
            sequence.num_times_passed += 1

    def _is_late(self, epoch: Epoch, sequence: Sequence, now: float) -> bool:
        """Whether its first token cannot come before its deadline."""
        deadline = sequence.request.deadline
        if deadline is None or sequence.offer is None or sequence.num_stored > sequence.num_prompt:
            return False
        # An estimate counts only while others measure it anew, lest one bad one refuse for ever.
        is_busy = epoch.batch.num_occupied > 0
        needed_s = self._pace.prefill_s(sequence.offer.num_tokens) if is_busy else 0.0
        return now + needed_s > deadline
