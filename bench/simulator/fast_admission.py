"""Which prompts a fast replica's step computes: the core's rules, on counts. Knows no time.

The rules of `scheduler_svc.core.admission`, for one tenant and one priority class.
"""

from collections import deque
from dataclasses import dataclass, field

from bench.simulator.fast_cache import FastCache, Node
from bench.simulator.fast_sequence import FastSequence
from scheduler_svc.core.budget import Allowance, Budget
from scheduler_svc.core.limits import WorkerLimits

_MAX_LOOK_AHEAD = 8


@dataclass(slots=True)
class Chunk:
    """Prompt tokens of one sequence in one step."""

    sequence: FastSequence
    start: int
    num_tokens: int


@dataclass(slots=True)
class _Draft:
    allowance: Allowance
    chunks: list[Chunk] = field(default_factory=list)
    started: list[FastSequence] = field(default_factory=list)

    def give(self, sequence: FastSequence, most: int) -> None:
        num_tokens = min(sequence.num_to_compute, most)
        self.chunks.append(Chunk(sequence, sequence.num_computed, num_tokens))
        sequence.num_computed += num_tokens
        self.allowance.take(num_tokens)


class FastAdmission:
    """The queue, and the prompts that run."""

    def __init__(self, cache: FastCache, limits: WorkerLimits, *, max_times_passed: int) -> None:
        self._cache = cache
        self._limits = limits
        self._max_times_passed = max_times_passed
        self.waiting: deque[FastSequence] = deque()
        self.prefilling: list[FastSequence] = []

    def fill(self, budget: Budget, *, num_running: int) -> tuple[list[Chunk], list[FastSequence]]:
        """Chunks within the budget, and the sequences that start with them."""
        running = list(self.prefilling)
        sure = min(running[0].num_to_compute, budget.num_sure_tokens) if running else 0
        draft = _Draft(Allowance(budget, num_reserved=sure))
        allowance = draft.allowance
        for sequence in sorted(running[1:], key=lambda each: each.num_to_compute):
            if sequence.num_to_compute <= allowance.num_left:
                draft.give(sequence, allowance.num_left)
        passed = self._start_short(draft, num_running)
        given = {id(chunk.sequence) for chunk in draft.chunks}
        allowance.open_to_pieces()
        for sequence in running:
            most = allowance.num_left_for(sequence.num_known)
            if id(sequence) not in given and most:
                draft.give(sequence, most)
        self._start_long(draft, passed, num_running)
        self.prefilling = [each for each in self.prefilling if each.num_to_compute]
        return draft.chunks, draft.started

    def put_back(self, sequence: FastSequence) -> None:
        """Lets a preempted sequence wait, in the order of arrival."""
        place = 0
        while place < len(self.waiting) and (self.waiting[place].job.number < sequence.job.number):
            place += 1
        self.waiting.insert(place, sequence)

    def _start_short(self, draft: _Draft, num_running: int) -> list[FastSequence]:
        passed: list[FastSequence] = []
        for sequence in list(self.waiting):
            is_full = num_running + len(draft.started) >= self._limits.max_num_seqs
            left = draft.allowance.num_left
            if is_full or not left or len(passed) == _MAX_LOOK_AHEAD:
                break
            match = self._consider(sequence, left, num_running + len(draft.started))
            if match is not None:
                self._start(draft, sequence, match, passed)
                draft.give(sequence, left)
                continue
            passed.append(sequence)
            if sequence.num_times_passed >= self._max_times_passed:
                break
        return passed

    def _start_long(self, draft: _Draft, passed: list[FastSequence], num_running: int) -> None:
        for index, sequence in enumerate(passed):
            num_now = num_running + len(draft.started)
            most = draft.allowance.num_left_for(sequence.num_known)
            if num_now >= self._limits.max_num_seqs or not most:
                return
            match = self._consider(sequence, None, num_now)
            if match is not None:
                self._start(draft, sequence, match, passed[:index])
                draft.give(sequence, most)
                return
            if sequence.num_times_passed >= self._max_times_passed:
                return

    def _consider(
        self, sequence: FastSequence, left: int | None, num_running: int
    ) -> tuple[list[Node], int] | None:
        size = self._limits.block_size
        nodes, num_found = self._cache.match(sequence.job.prompt)
        num_found = min(num_found, (sequence.num_known - 1) // size)
        needed = -(-sequence.num_known // size) - num_found + self._cache.num_idle(nodes)
        if needed + num_running > self._cache.num_available:
            return None
        if left is not None and sequence.num_known - num_found * size > left:
            return None
        return nodes, num_found

    def _start(
        self,
        draft: _Draft,
        sequence: FastSequence,
        match: tuple[list[Node], int],
        passed: list[FastSequence],
    ) -> None:
        nodes, num_found = match
        size = self._limits.block_size
        sequence.holding = self._cache.hold(nodes, -(-sequence.num_known // size) - num_found)
        sequence.num_computed = num_found * size
        self.waiting.remove(sequence)
        self.prefilling.append(sequence)
        draft.started.append(sequence)
        for other in passed:
            other.num_times_passed += 1
